"""`khop lookup`: convert between your ids and node numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from khop.cli.arguments import GraphArgument, folder_of


class By(StrEnum):
    """How `khop lookup` interprets its arguments."""

    ID = "id"
    NODE = "node"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lookup")(lookup)


def lookup(
    graph: GraphArgument,
    node_type: Annotated[str, typer.Argument(metavar="TYPE", help="Node type.", show_default=False)],
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Your ids, or node numbers.", show_default=False),
    ],
    by: Annotated[
        By, typer.Option("--by", help="Arguments: your ids (id), or node numbers (node) (default id).")
    ] = By.ID,
) -> None:
    """Print the node of each id, or the id of each node, one per line: the argument, a tab, the result.

    The exit code is 1 if an id is unknown.
    """
    from khop.api.open_graph import open_ids
    from khop.cli.terminal import tell_next

    info = ("khop", "info", str(graph))
    of_type = open_ids(folder_of(graph), node_type)
    if by is By.NODE:
        found = of_type.ids([_number(one) for one in ids])
        typer.echo("\n".join(f"{node}\t{id_}" for node, id_ in zip(ids, found, strict=True)))
        tell_next(info)
        return
    rows = of_type.rows(ids).tolist()
    typer.echo(
        "\n".join(f"{id_}\t{'unknown' if row < 0 else row}" for id_, row in zip(ids, rows, strict=True))
    )
    tell_next(info)
    if min(rows) < 0:
        raise typer.Exit(1)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"--by node {text!r}: not a node number; leave --by out to look up an id") from error
