"""`khop info`, `khop verify`, `khop graph ...`: look at a graph folder, check it, make others of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import dropwhile
from pathlib import Path
from typing import Annotated

import typer
from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, JustifyMethod
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from khop.cli.bytes_bar import bytes_bar
from khop.cli.graph_argument import AsJson, GraphArgument, folder_of
from khop.cli.parts_table import print_parts
from khop.cli.split import split
from khop.graph.csc_graph import CscGraph
from khop.graph.describe import EdgeSummary, FolderSummary, NodeSummary, describe_folder
from khop.graph.folder import open_folder
from khop.graph.save import save_graph
from khop.graph.verify import verify_folder
from khop.partitioning import describe_parts, is_partitioned, verify_partition
from khop.schema import EdgeType

_BAR_WIDTH = 20


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(info)
    app.command()(verify)
    folders = typer.Typer(help="Make a graph folder of another.", no_args_is_help=True)
    folders.command("sort")(sort)
    folders.command("split")(split)
    app.add_typer(folders, name="graph")


def info(graph: GraphArgument, as_json: AsJson = False) -> None:
    """Show what a graph folder holds: types, counts, degrees, columns, splits, sizes on disk.

    Of a partitioned graph the same of the whole, and its parts.
    """
    folder = folder_of(graph)
    parts = describe_parts(folder) if is_partitioned(folder) else None
    summary = parts.whole if parts else describe_folder(folder)
    if as_json:
        typer.echo(json.dumps(asdict(parts or summary)))
        return
    console = Console()
    console.print(_heading(summary))
    console.print(_node_table(summary.nodes))
    console.print(_edge_table(summary.edges))
    console.print(_column_table((*summary.nodes, *summary.edges)))
    console.print(Columns(_degree_chart(edge) for edge in summary.edges))
    if parts:
        print_parts(console, parts)


def verify(graph: GraphArgument, as_json: AsJson = False) -> None:
    """Read all of a graph folder and check it: checksums, ids, offsets, lengths, labels, splits.

    Of a partitioned graph all parts, and that they hold every node and every edge of the whole once.

    Exit code 0 when all is well, 1 with findings.
    """
    folder = folder_of(graph)
    with bytes_bar() as notice:
        findings = (
            verify_partition(folder, notice) if is_partitioned(folder) else verify_folder(folder, notice)
        )
    if as_json:
        typer.echo(json.dumps({"path": str(folder), "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            typer.echo(f"{folder / finding.file}: {finding.problem}")
        typer.echo(f"{folder}: {_findings(len(findings))}" if findings else f"{folder}: all is well")
    if findings:
        raise typer.Exit(1)


def sort(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="The graph folder to write.", show_default=False)],
    by: Annotated[str, typer.Option(help="The column of times.", metavar="COLUMN", show_default=False)],
) -> None:
    """Write a graph with the edges of each node in the order of time, as sampling by time needs them.

    The column is one of edges, of nodes, or of both: then the later of the two counts.
    """
    folder = open_folder(folder_of(graph))
    splits = {name: folder.split(name) for name in folder.split_names}
    with bytes_bar() as notice:
        save_graph(out, CscGraph.open(folder), folder.columns(), splits, notice, sort_by=by)
    typer.echo(f"{out}: sorted by {by}. Look at it: khop info {out}")


def _heading(summary: FolderSummary) -> Text:
    version = f"format {summary.version}"
    size, fingerprint = decimal(summary.num_bytes), f"fingerprint {summary.fingerprint[:12]}"
    return Text.assemble((summary.path, "bold"), f"  {size}, {version}, {fingerprint}")


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
            shape = " x ".join(map(str, column.shape)) or "number"
            classes = "" if column.num_classes is None else str(column.num_classes)
            name = summary.type if isinstance(summary, NodeSummary) else _arrow(summary.type)
            table.add_row(name, column.name, column.dtype, shape, classes, decimal(column.num_bytes))
    return table


def _degree_chart(edge: EdgeSummary) -> Panel:
    chart = Table.grid(padding=(0, 1))
    chart.add_column(justify="right")
    chart.add_column()
    chart.add_column(justify="right")
    most = max((bucket.nodes for bucket in edge.degrees.histogram), default=0)
    for bucket in dropwhile(lambda bucket: bucket.nodes == 0, edge.degrees.histogram):
        label = str(bucket.low) if bucket.low == bucket.high else f"{bucket.low:,}-{bucket.high:,}"
        chart.add_row(label, Bar(most, 0, bucket.nodes, width=_BAR_WIDTH, color="cyan"), f"{bucket.nodes:,}")
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


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count} findings"
