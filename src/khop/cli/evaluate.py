"""`khop evaluate`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from khop.cli.options import Options, takes_run_options
from khop.cli.progress import say, two_columns, warn, watching
from khop.cli.ranks import Oversubscribe, Procs, as_ranks, named, run_of_rank
from khop.cli.run_folder import CHECKPOINTS, read_run
from khop.config.facts import MACHINE, TOGETHER
from khop.config.fields import run_fields
from khop.config.read import RawRun, checked, with_options
from khop.training.observer import Unwatched
from khop.training.tasks import score_name


class Split(StrEnum):
    """The nodes, or links, that can be measured."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
    ALL = "all"


class Checkpoint(StrEnum):
    """The weights that a run keeps."""

    BEST = "best"
    LAST = "last"


Folder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="What khop train made.")]
Measured = Annotated[Split, typer.Option("--split", help="What is measured; all = each split.")]
Weights = Annotated[Checkpoint, typer.Option("--checkpoint", help="The weights that are measured.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; all else goes to stderr.")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="TEXT",
        help="What is measured beside the run's own metric; may be given several times.",
        show_default=False,
    ),
]
_MEASURED_BY = MACHINE | TOGETHER | {"evaluation.fanouts", "evaluation.batch_size", "links.rivals"}


def register(app: typer.Typer) -> None:
    """Add `khop evaluate`."""
    fields = [entry for entry in run_fields() if entry.path in _MEASURED_BY]
    app.command("evaluate")(takes_run_options(fields, default="as in the run")(_evaluate))


@dataclass(frozen=True)
class Request:
    """What one call of the command asks every rank to do."""

    folder: Path
    raw: RawRun
    splits: tuple[str, ...]  # empty: all that the run has
    checkpoint: str
    metrics: tuple[str, ...]
    given: frozenset[str]  # options of this call, not of the run
    as_json: bool


def _evaluate(
    run_folder: Folder,
    split: Measured = Split.TEST,
    checkpoint: Weights = Checkpoint.BEST,
    metric: Metrics = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    as_json: AsJson = False,
    *,
    options: Options,
) -> None:
    """Measure a trained model again: on another split, with other weights, exactly or on samples."""
    raw = with_options(read_run(run_folder), options)
    request = Request(
        run_folder,
        raw,
        () if split is Split.ALL else (split.value,),
        checkpoint.value,
        tuple(metric or ()),
        named(options),
        as_json,
    )
    as_ranks(evaluate_rank, request, checked(raw), procs, oversubscribe=oversubscribe)


def evaluate_rank(rank: int, device: torch.device, request: Request) -> None:
    """Measure as one rank, which is often the only one; rank 0 talks."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    run = run_of_rank(request.raw, device, request.given)
    run.restore(request.folder / CHECKPOINTS / request.checkpoint, warn, request.raw.options)
    with watching(console) if rank == 0 else nullcontext(Unwatched()) as watcher:
        scores = run.scores(request.splits or run.subject.splits, watcher.evaluating, request.metrics)
    outcome = {
        "run": str(request.folder),
        "checkpoint": request.checkpoint,
        **{score_name(name, run.task.metric): score for name, score in scores.items()},
    }
    say(console, *two_columns(outcome))
    if request.as_json and rank == 0:
        print(json.dumps(outcome))
