"""The command: parse, call, print."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="khop", no_args_is_help=True, help="Train graph neural networks on sampled neighbourhoods."
)


def run() -> None:
    """The entry point of `khop`."""
    app()
