"""`khop append` and `khop compact`: add rows to a graph as a snapshot, and merge its snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.commands.importing import Memory
from khop.cli.lines import shell_word

AppendedGraph = Annotated[Path, typer.Argument(help="Graph folder written by khop import.")]


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
            readable=False,
            help="Tables of new nodes and edges, as for khop import --encoders.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            help="Id of a node to delete with its edges, or @FILE with one id per line; can be repeated.",
            metavar="TYPE=ID",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(help="Split to which new labeled nodes are added (default: none).", show_default=False),
    ] = "",
    memory: Memory = "",
    threads: Annotated[
        int,
        typer.Option(
            help="Threads that read tables; the graph does not depend on their number (0: one per core)."
        ),
    ] = 0,
) -> None:
    """Append the rows of tables to an imported graph, or delete nodes, as a new snapshot.

    Processes that opened the graph earlier keep their snapshot.
    """
    from khop.cli.importing import run_append

    run_append(graph, spec, delete or [], split, memory, threads)


def compact(graph: AppendedGraph) -> None:
    """Keep only the newest snapshot of a graph; delete the others, with all deleted nodes.

    Runs on earlier snapshots cannot be resumed afterwards. Batches do not change.
    """
    from khop.graph.snapshots import compact as compacted

    compacted(graph)
    typer.echo(f"{graph}: now has a single snapshot. Show it: khop info {shell_word(str(graph))}")
