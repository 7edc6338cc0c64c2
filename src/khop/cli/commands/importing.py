"""`khop import`: convert package lists to a graph folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEBIAN = "debian"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_graph)


def import_graph(
    source: Annotated[
        str,
        typer.Argument(
            help="Data to import. debian: the packages of a Debian or Ubuntu release.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None, typer.Argument(help="Graph folder to write.", show_default="graphs/SOURCE")
    ] = None,
    lists: Annotated[
        Path | None,
        typer.Option(help="Folder with *_Packages files.", metavar="DIR", show_default="apt's own lists"),
    ] = None,
    typed: Annotated[
        bool,
        typer.Option(
            "--typed", help="Import all node and edge types instead of packages and their links only."
        ),
    ] = False,
) -> None:
    """Write a graph folder from data of another format."""
    if source != DEBIAN:
        raise ValueError(
            f"{source}: khop import reads only the package lists of a Debian or Ubuntu release; use khop "
            "import debian, or write a graph folder in Python with khop.write_graph (docs/graph-folder.md)"
        )
    from khop.cli.bytes_bar import bytes_bar
    from khop.datasets.debian.importing import import_debian

    name = f"{source}-typed" if typed else source
    folder = Path("graphs", name) if out is None else out
    with bytes_bar() as notice:
        facts = import_debian(folder, name, lists, notice)
    typer.echo(f"{folder}: {facts.counts['package']:,} packages. Show it: khop info {folder}")
