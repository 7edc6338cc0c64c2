"""`khop schema`: print the JSON Schema of a run file or of an import spec."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

_NEXT = """To complete {files} in an editor with a TOML plug-in (Taplo, Even Better TOML):
khop schema{words} > {name}
and as the first line of {file}:  #:schema ./{name}"""


class SchemaFile(StrEnum):
    """Files that have a schema."""

    RUN = "run"
    IMPORT = "import"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(schema)


def schema(
    of: Annotated[
        SchemaFile,
        typer.Argument(help="Schema to print: of a run file (run) or an import spec (import)."),
    ] = SchemaFile.RUN,
) -> None:
    """Print the JSON Schema of a run file or an import spec, for completion and checks in editors.

    Write it to a file, khop schema > khop-run.schema.json, and name it in the first line of run.toml:
    #:schema ./khop-run.schema.json

    For specs: khop schema import > khop-import.schema.json
    """
    from khop.cli import terminal

    typer.echo(json.dumps(_schema(of), indent=1))
    if terminal.stdout_is_a_terminal():
        is_run = of is SchemaFile.RUN
        files, words, file = ("run files", "", "run.toml") if is_run else ("specs", " import", "SPEC.toml")
        typer.echo(_NEXT.format(files=files, words=words, file=file, name=f"khop-{of}.schema.json"), err=True)


def _schema(of: SchemaFile) -> dict[str, object]:
    if of is SchemaFile.IMPORT:
        from khop.data.tables.spec import spec_schema

        return spec_schema()
    from khop.run.run_type import run_schema

    return run_schema()
