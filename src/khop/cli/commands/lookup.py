"""`khop lookup`: the nodes of the users' own ids, and back."""

from __future__ import annotations

from typing import Annotated

import typer

from khop.cli.graph_argument import GraphArgument, folder_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lookup")(lookup)


def lookup(
    graph: GraphArgument,
    node_type: Annotated[str, typer.Argument(metavar="TYPE", help="Node type.", show_default=False)],
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids to look up, as in the tables.", show_default=False),
    ],
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Look up the ids of node numbers instead (default: off).")
    ] = False,
) -> None:
    """Print the node of each id, one line per id: the id, a tab, the node.

    The exit code is 1 if an id is unknown.
    """
    from khop.graph.node_ids import open_ids

    of_type = open_ids(folder_of(graph), node_type)
    if nodes:
        found = of_type.ids([_number(one) for one in ids])
        typer.echo("\n".join(f"{node}\t{id_}" for node, id_ in zip(ids, found, strict=True)))
        return
    rows = of_type.rows(ids).tolist()
    typer.echo(
        "\n".join(f"{id_}\t{'unknown' if row < 0 else row}" for id_, row in zip(ids, rows, strict=True))
    )
    if min(rows) < 0:
        raise typer.Exit(1)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(
            f"--nodes {text!r}: is no number of a node; leave --nodes out to look up an id"
        ) from error
