"""The command: parse, call, print."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import khop
from khop.cli import evaluate, graph, importing, infer, partition, plan, profile, train
from khop.errors import PeerLost

FAILED = 1  # the machine: no space, no permission
BAD_INPUT = 2  # what was asked for

app = typer.Typer(name="khop", no_args_is_help=True, pretty_exceptions_show_locals=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"khop {khop.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Train graph neural networks on sampled neighbourhoods."""


for commands in (train, evaluate, infer, profile, importing, graph, partition, plan):
    commands.register(app)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command: bad input, a failing machine and a lost rank give one line, a bug keeps its traceback.

    With KHOP_TRACEBACK in the environment everything keeps it.
    """
    try:
        app(args=arguments, prog_name="khop")
    except (ValueError, OSError, PeerLost) as error:
        if os.environ.get("KHOP_TRACEBACK"):
            raise
        sentence = _sentence(error) if isinstance(error, OSError) else str(error)
        code = BAD_INPUT if isinstance(error, ValueError) else FAILED
        print(f"khop: {sentence}", file=sys.stderr)
        sys.exit(code)


def _sentence(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"
