"""`khop report`: write an HTML page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.commands.shared import AllowCode
from khop.cli.options import takes_groups

Runs = Annotated[list[Path], typer.Argument(metavar="RUN_FOLDER...", help="One or more run folders.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE.html", help="Page to write (default report.html).")
]
Device = Annotated[
    str | None,
    typer.Option(help="Device that evaluates the test split (default: that of the run).", show_default=False),
]
Evaluate = Annotated[
    bool,
    typer.Option(
        "--evaluate/--no-evaluate", help="Evaluate the test split again for its charts and examples."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(takes_groups(report))


def report(
    run_folders: Runs,
    out: Out = Path("report.html"),
    device: Device = None,
    evaluate: Evaluate = True,
    allow_code: AllowCode = None,
) -> None:
    """Write a self-contained HTML page about one or several runs.

    The page shows curves, scores with baselines, times, caches, network traffic, the worst predictions of
    the test split with your ids, memory, environment, and settings that differ.
    """
    from khop.cli.report import ReportCall, report

    report(ReportCall(tuple(run_folders), out, device, evaluate, tuple(allow_code or ())))
