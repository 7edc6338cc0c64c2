"""`khop info`, `khop verify`, `khop graph ...`: look at a graph folder, check it, make others of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.commands.split import split
from khop.cli.graph_argument import AsJson, GraphArgument, folder_of


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
    from khop.cli.info import print_info

    print_info(folder_of(graph), as_json)


def verify(graph: GraphArgument, as_json: AsJson = False) -> None:
    """Read all of a graph folder and check it: checksums, ids, offsets, lengths, labels, splits.

    Of a partitioned graph all parts, and that they hold every node and every edge of the whole once.

    Exit code 0 when all is well, 1 with findings.
    """
    folder = folder_of(graph)
    from khop.cli import graph as work

    work.verify(folder, as_json)


def sort(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="The graph folder to write.", show_default=False)],
    by: Annotated[str, typer.Option(help="The column of times.", metavar="COLUMN", show_default=False)],
) -> None:
    """Write a graph with the edges of each node in the order of time, as sampling by time needs them.

    The column is one of edges, of nodes, or of both: then the later of the two counts.
    """
    folder = folder_of(graph)
    from khop.cli import graph as work

    work.sort(folder, out, by)
