"""`khop import`: other people's data to a graph folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.bytes_bar import bytes_bar
from khop.datasets.debian.importing import import_debian


class Source(StrEnum):
    """What can be imported."""

    DEBIAN = "debian"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_graph)


def import_graph(
    source: Annotated[
        Source, typer.Argument(help="debian: the packages of a Debian or Ubuntu release.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Argument(help="The graph folder to write.", show_default="graphs/SOURCE")
    ] = None,
    lists: Annotated[
        Path | None,
        typer.Option(help="A folder with *_Packages files.", metavar="DIR", show_default="apt's own lists"),
    ] = None,
    typed: Annotated[
        bool, typer.Option("--typed", help="All node and edge types, not only packages and their links.")
    ] = False,
) -> None:
    """Make a graph folder of data that lies somewhere else."""
    name = f"{source}-typed" if typed else str(source)
    folder = Path("graphs", name) if out is None else out
    with bytes_bar() as notice:
        facts = import_debian(folder, name, lists, notice)
    typer.echo(f"{folder}: {facts.counts['package']:,} packages. Look at it: khop info {folder}")
