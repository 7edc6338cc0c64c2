"""`khop import`: other people's data to a graph folder."""

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
        str, typer.Argument(help="debian: the packages of a Debian or Ubuntu release.", show_default=False)
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
    if source != DEBIAN:
        raise ValueError(
            f"{source}: khop import reads the package lists of a Debian or Ubuntu release and no other data: "
            "khop import debian; write a graph folder of your own data in Python, with khop.write_graph "
            "(docs/graph-folder.md)"
        )
    from khop.cli.bytes_bar import bytes_bar
    from khop.datasets.debian.importing import import_debian

    name = f"{source}-typed" if typed else source
    folder = Path("graphs", name) if out is None else out
    with bytes_bar() as notice:
        facts = import_debian(folder, name, lists, notice)
    typer.echo(f"{folder}: {facts.counts['package']:,} packages. Look at it: khop info {folder}")
