"""Arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Checkpoint(StrEnum):
    """The weights that a run keeps."""

    BEST = "best"
    LAST = "last"


RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="What khop train made.")]
JsonLast = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; all else goes to stderr.")
]
Procs = Annotated[
    int | None,
    typer.Option(
        "--procs",
        metavar="INT",
        help="Processes on this machine that share the work; on more machines: torchrun ... -m khop.",
        show_default=False,
    ),
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Allow more than 4 processes per core of this machine.")
]
