"""`khop import SPEC.toml`: a graph folder from tables, and specs proposed for tables."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer

from khop.cli.next_steps import tell_next
from khop.config.kinds import LINK_PREDICTION
from khop.config.saved_run import is_run_folder, saved_run
from khop.graph.snapshots import owner_of
from khop.loading.byte_size import byte_size
from khop.loading.cores import allowed_cores


def print_guess(files: list[str], header: str = "yes") -> None:
    """Print a spec for files of tables."""
    try:
        from khop.importing.guess import guess_spec
    except ImportError as error:
        raise ValueError(str(error)) from None
    files = [file for file in files if file]
    typer.echo(guess_spec(files, Path(), header), nl=False)
    guess = ("khop", "import", "--guess", *files, *(["--header", "no"] if header == "no" else []))
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
    elif is_run_folder(encoders):
        _tell_predictions(spec, target, encoders)


def _tell_predictions(spec: Path, later: Path, run: Path) -> None:
    """Name the command that uses later data: predictions of nodes, or for links an append."""
    config = saved_run(run, (), lambda problem: None)
    task = config.values.get("task")
    if isinstance(task, dict) and task.get("kind") == LINK_PREDICTION:
        path = Path(str(config.values["graph"]))
        graph, folder = shlex.quote(str(owner_of(path) or path)), shlex.quote(str(run))
        typer.echo(f"Recommend for them: khop append {graph} {spec} && khop recommend {folder} --user ID")
    else:
        typer.echo(f"Predict them: khop predict {run} --graph {later}")
