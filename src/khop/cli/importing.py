"""`khop import SPEC.toml`: a graph folder from tables, and specs proposed for tables."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from khop.cli.next_steps import tell_next
from khop.loading.byte_size import byte_size
from khop.loading.cores import allowed_cores


def print_guess(files: list[str]) -> None:
    """Print a spec for files of tables."""
    try:
        from khop.importing.guess import guess_spec
    except ImportError as error:
        raise ValueError(str(error)) from None
    typer.echo(guess_spec([file for file in files if file], Path()), nl=False)
    guess = ("khop", "import", "--guess", *files)
    tell_next((*guess, ">", "tables.toml"), ("khop", "import", "tables.toml"))


def run_table_import(spec: Path, out: Path | None, memory: str, threads: int, encoders: Path | None) -> None:
    """Write the folder, by default graphs/NAME for NAME.toml, and print its counts."""
    try:
        from khop.importing.import_tables import import_tables
    except ImportError as error:
        raise ValueError(str(error)) from None
    from khop.cli.bytes_bar import bytes_bar

    target = Path("graphs", spec.stem) if out is None else out
    budget = byte_size(memory, "memory") if memory else None
    with bytes_bar() as notice:
        done = import_tables(
            spec, target, memory=budget, threads=threads or allowed_cores(),
            environment=os.environ, notice=notice, encoders=encoders,
        )  # fmt: skip
    typer.echo(f"{done}\nShow it: khop info {target}")
    if encoders is None:
        typer.echo(f"Train on it: khop init {target} > run.toml && khop train run.toml")
