"""Output of `khop info`.

This module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import dropwhile
from pathlib import Path

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, JustifyMethod
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from khop.cli.terminal import bytes_bar, fitting, say, say_next, table_console
from khop.data.partition.describe import PartsSummary, PartSummary, describe_parts
from khop.graph.describe import EdgeSummary, FolderSummary, NodeSummary, describe_folder
from khop.graph.layout import is_partitioned, part_name
from khop.graph.remote import with_urls
from khop.schema import EdgeType


def print_parts(console: Console, summary: PartsSummary, asked: str = "") -> None:
    """Print a line per part, and the share of edges between parts.

    `asked` is appended to the sentence on remote nodes; it describes the batches of the estimate.
    """
    console.print(fitting(console, _parts_table(summary), "size", "in-edges"))
    cuts = ", ".join(f"{name} {share:.1%}" for name, share in summary.cut.items() if name != "all")
    by_type = f" ({cuts})" if len(summary.cut) > 2 else ""
    say(console, f"{summary.cut['all']:.1%} of the edges connect two parts{by_type}.")
    if summary.remote_share is not None:
        say(console, f"{summary.remote_share:.1%} of a batch's nodes will be remote{asked}.")


def _parts_table(summary: PartsSummary) -> Table:
    title = f"{with_urls(summary.whole.path)}: {len(summary.parts)} parts by {summary.method}"
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


_BAR_WIDTH = 20
_BESIDE_BAR = 32  # terminal columns for a range of degrees and a number of nodes
_LEAST_OF_EDGES = (
    "p90",
    "min",
    "isolated",
    "p99",
    "size",
    "median",
    "max",
)  # columns that are left out, in this order


def print_info(folder: Path, as_json: bool) -> None:
    """Print the contents of a graph folder, as tables or as one JSON object."""
    with bytes_bar("reading") as notice:
        parts = describe_parts(folder, notice) if is_partitioned(folder) else None
        summary = parts.whole if parts else describe_folder(folder, notice)
    if as_json:
        print(with_urls(json.dumps(asdict(parts or summary))))
        return
    console = table_console()
    console.print(_heading(summary))
    console.print(fitting(console, _node_table(summary.nodes), "size"))
    console.print(fitting(console, _edge_table(summary.edges), *_LEAST_OF_EDGES))
    console.print(fitting(console, _column_table((*summary.nodes, *summary.edges)), "classes", "size"))
    bar_width = max(1, min(_BAR_WIDTH, console.width - _BESIDE_BAR))
    console.print(Columns(_degree_chart(edge, bar_width) for edge in summary.edges))
    if parts:
        print_parts(console, parts)
    init = ("khop", "init", str(folder), ">", "run.toml")
    procs = ("--procs", str(len(parts.parts))) if parts else ()
    say_next(console, init, ("khop", "train", "run.toml", *procs))


def _heading(summary: FolderSummary) -> Text:
    version = f"format {summary.version}"
    size, fingerprint = decimal(summary.num_bytes), f"fingerprint {summary.fingerprint[:12]}"
    return Text.assemble((with_urls(summary.path), "bold"), f"  {size}, {version}, {fingerprint}")


def _node_table(nodes: tuple[NodeSummary, ...]) -> Table:
    table = _table("nodes", ("type", "left"), ("nodes", "right"), ("splits", "left"), ("size", "right"))
    for node in nodes:
        splits = ", ".join(f"{name} {count:,}" for name, count in node.splits.items())
        table.add_row(node.type, f"{node.count:,}", splits, decimal(node.num_bytes))
    return table


def _edge_table(edges: tuple[EdgeSummary, ...]) -> Table:
    numbers = ("edges", "min", "median", "p90", "p99", "max", "isolated", "size")
    table = _table(
        "edges, and in-edges per destination", ("type", "left"), *((name, "right") for name in numbers)
    )
    for edge in edges:
        of = edge.degrees
        cells = (edge.count, of.minimum, of.median, of.p90, of.p99, of.maximum, of.isolated)
        table.add_row(_edge_name(edge), *(f"{cell:,}" for cell in cells), decimal(edge.num_bytes))
    return table


def _edge_name(edge: EdgeSummary) -> Text:
    name = Text(_arrow(edge.type))
    if edge.reverse_of:
        name.append(f"\nreverse of {_arrow(edge.reverse_of)}", "dim")
    return name


def _column_table(types: Sequence[NodeSummary | EdgeSummary]) -> Table:
    table = _table(
        "columns",
        ("type", "left"),
        ("column", "left"),
        ("dtype", "left"),
        ("row", "left"),
        ("classes", "right"),
        ("size", "right"),
    )
    for summary in types:
        for column in summary.columns:
            shape, dtype = " x ".join(map(str, column.shape)) or "number", column.dtype
            if column.sparse_width is not None:
                shape, dtype = f"{column.shape[-1]} of {column.sparse_width:,}", "sparse float32"
            classes = "" if column.num_classes is None else str(column.num_classes)
            name = summary.type if isinstance(summary, NodeSummary) else _arrow(summary.type)
            table.add_row(name, column.name, dtype, shape, classes, decimal(column.num_bytes))
    return table


def _degree_chart(edge: EdgeSummary, bar_width: int) -> Panel:
    chart = Table.grid(padding=(0, 1))
    chart.add_column(justify="right")
    chart.add_column()
    chart.add_column(justify="right")
    most = max((bucket.nodes for bucket in edge.degrees.histogram), default=0)
    for bucket in dropwhile(lambda bucket: bucket.nodes == 0, edge.degrees.histogram):
        label = str(bucket.low) if bucket.low == bucket.high else f"{bucket.low:,}-{bucket.high:,}"
        chart.add_row(label, Bar(most, 0, bucket.nodes, width=bar_width, color="cyan"), f"{bucket.nodes:,}")
    return Panel(
        chart, title=_arrow(edge.type), subtitle="in-degree, nodes", expand=False, border_style="dim"
    )


def _table(title: str, *columns: tuple[str, JustifyMethod]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold", no_wrap=justify == "right")
    return table


def _arrow(edge_type: EdgeType) -> str:
    source, relation, destination = edge_type
    return f"{source} -{relation}-> {destination}"
