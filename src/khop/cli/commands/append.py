"""`khop append` and `khop compact`: add rows to a graph as a snapshot, and merge its snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.commands.importing import Memory

AppendedGraph = Annotated[Path, typer.Argument(help="Graph folder that khop import has written.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("append")(append)
    app.command("compact")(compact)


def append(
    graph: AppendedGraph,
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="SPEC.toml",
            help="Tables of new nodes and edges, as for khop import --encoders.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            help="Node to delete with its edges, by your own id; @FILE: ids, one per line. May be repeated.",
            metavar="TYPE=ID",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(help="Split that new nodes with known labels join (default: none).", show_default=False),
    ] = "",
    memory: Memory = "",
    threads: Annotated[
        int,
        typer.Option(help="Threads that read tables; the graph does not depend on them (0: one per core)."),
    ] = 0,
) -> None:
    """Append the rows of tables to an imported graph, or delete nodes, as a new snapshot.

    Processes that have opened the graph before keep their snapshot.
    """
    from khop.cli.importing import run_append

    run_append(graph, spec, delete or [], split, memory, threads)


def compact(graph: AppendedGraph) -> None:
    """Keep the newest snapshot of a graph, and erase all others with the nodes deleted since.

    Runs on earlier snapshots cannot be resumed afterwards. Batches stay the same.
    """
    from khop.graph.snapshots import compact as compacted

    compacted(graph)
    typer.echo(f"{graph}: has one snapshot. Show it: khop info {graph}")
