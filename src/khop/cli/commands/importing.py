"""`khop import`: convert package lists to a graph folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.option_groups import takes_groups

DEBIAN = "debian"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(takes_groups(import_graph))


@dataclass(frozen=True)
class DebianOptions:
    """Options of an import of package lists."""

    lists: Annotated[
        Path | None,
        typer.Option(help="Folder with *_Packages files.", metavar="DIR", show_default="apt's own lists"),
    ] = None
    typed: Annotated[
        bool,
        typer.Option(
            "--typed", help="Import all node and edge types instead of packages and their links only."
        ),
    ] = False


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
    *,
    of_debian: DebianOptions,
) -> None:
    """Write a graph folder from data of another format."""
    if source != DEBIAN:
        raise ValueError(
            f"{source}: khop import reads only the package lists of a Debian or Ubuntu release; use khop "
            "import debian, or write a graph folder in Python with khop.write_graph (docs/graph-folder.md)"
        )
    from khop.cli.bytes_bar import bytes_bar
    from khop.datasets.debian.importing import import_debian

    name = f"{source}-typed" if of_debian.typed else source
    folder = Path("graphs", name) if out is None else out
    with bytes_bar() as notice:
        facts = import_debian(folder, name, of_debian.lists, notice)
    typer.echo(f"{folder}: {facts.counts['package']:,} packages. Show it: khop info {folder}")
