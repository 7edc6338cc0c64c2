"""Arguments and options that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Checkpoint(StrEnum):
    """The weights that a run keeps."""

    BEST = "best"
    LAST = "last"


RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Folder of a run, made by khop train.")]
JsonLast = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object to stdout at the end; other output goes to stderr."),
]
Procs = Annotated[
    int | None,
    typer.Option(
        "--procs",
        metavar="INT",
        help="Processes on this machine (default 1); on several machines use torchrun ... -m khop.",
        show_default=False,
    ),
]
Oversubscribe = Annotated[bool, typer.Option("--oversubscribe", help="Allow more than 4 processes per core.")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="PACKAGE",
        help="Package whose code a run folder may name and import; can be repeated (default: none).",
        show_default=False,
    ),
]
Baselines = Annotated[
    bool,
    typer.Option(
        "--baselines",
        help="Also train a model of each node's own columns, without the graph, and show its scores.",
    ),
]


@dataclass(frozen=True)
class RankOptions:
    """Options of a command that works as one or several ranks."""

    procs: Procs = None
    oversubscribe: Oversubscribe = False


@dataclass(frozen=True)
class RankReport:
    """Option of such a command for its output."""

    as_json: JsonLast = False
