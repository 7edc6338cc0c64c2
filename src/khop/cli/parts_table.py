"""The table of a partitioned graph, as in `khop partition` and `khop info`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from khop.cli.terminal import fitting, say
from khop.graph.layout import part_name
from khop.partition.describe import PartsSummary, PartSummary


def print_parts(console: Console, summary: PartsSummary, asked: str = "") -> None:
    """Print a line per part, and the share of edges between parts.

    `asked` is added to the sentence on remote nodes, to name the batches of the estimate.
    """
    console.print(fitting(console, _table(summary), "size", "in-edges"))
    cuts = ", ".join(f"{name} {share:.1%}" for name, share in summary.cut.items() if name != "all")
    by_type = f" ({cuts})" if len(summary.cut) > 2 else ""
    say(console, f"{summary.cut['all']:.1%} of the edges join two parts{by_type}.")
    if summary.remote_share is not None:
        say(console, f"{summary.remote_share:.1%} of a batch's nodes will be remote{asked}.")


def _table(summary: PartsSummary) -> Table:
    title = f"{summary.whole.path}: {len(summary.parts)} parts by {summary.method}"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("part")
    for name in ("nodes", "in-edges", "size"):
        table.add_column(name, justify="right")
    table.add_column("most above its share")
    for part in summary.parts:
        most = f"{part.share - 1:+.1%} {part.most}"
        table.add_row(part_name(part.number), f"{part.nodes:,}", f"{part.edges:,}", _size(part), most)
    return table


def _size(part: PartSummary) -> str:
    return "not here" if part.num_bytes is None else decimal(part.num_bytes)
