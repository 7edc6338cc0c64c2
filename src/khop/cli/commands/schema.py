"""`khop schema`: the JSON Schema of a run file."""

from __future__ import annotations

import json

import typer

_NEXT = """To complete run files in an editor with a TOML plug-in (Taplo, Even Better TOML):
khop schema > khop-run.schema.json
and as the first line of run.toml:  #:schema ./khop-run.schema.json"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(schema)


def schema() -> None:
    """Print the JSON Schema of a run file, with which editors complete and check it.

    Write it to a file, khop schema > khop-run.schema.json, and name it in the first line of run.toml:
    #:schema ./khop-run.schema.json
    """
    from khop.cli import terminal
    from khop.config.run_schema import run_schema

    typer.echo(json.dumps(run_schema(), indent=1))
    if terminal.stdout_is_a_terminal():
        typer.echo(_NEXT, err=True)
