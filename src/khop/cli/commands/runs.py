"""`khop runs` and `khop compare`: list and compare runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import AsJson
from khop.cli.options import takes_groups

Below = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with runs, at any depth.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN_FOLDER...", help="Two or more run folders.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("runs")(takes_groups(runs))
    app.command("compare")(takes_groups(compare))


def runs(folder: Below = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs below a folder: scores, baselines, epochs, time, age, and state.

    Scores are those of the best epoch. A run with the state resumable is still training, or was stopped.
    """
    from khop.cli.runs import print_runs

    print_runs(folder, as_json)


def compare(run_folders: Runs, as_json: AsJson = False) -> None:
    """Compare runs side by side: scores, time, environment, and the settings that differ."""
    from khop.cli.runs import print_comparison

    print_comparison(run_folders, as_json)
