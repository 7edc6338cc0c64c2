"""`khop doctor`: check this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from khop.cli.arguments import Report
from khop.cli.options import takes_groups


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(takes_groups(doctor))


def doctor(
    report: Report,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help="First compare the results of all kernels on each GPU with the CPU, bit by bit."
        ),
    ] = False,
) -> None:
    """Check the installation and this machine: versions, cores, memory, GPUs, network, limits and disk.

    Each line says ok, or names a problem and its remedy. The exit code is 1 only if khop cannot run.
    """
    from khop.cli.doctor import examine

    examine(report.as_json, gpu)
