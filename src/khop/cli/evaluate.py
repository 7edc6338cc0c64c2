"""`khop evaluate`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from khop.cli.bytes_bar import bytes_bar
from khop.cli.cache import cache_folder
from khop.cli.options import Options, takes_run_options
from khop.cli.progress import say, two_columns, watching
from khop.cli.run_folder import CHECKPOINTS, read_run
from khop.config.build import prepare
from khop.config.facts import MACHINE
from khop.config.fields import run_fields
from khop.config.read import with_options
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
_MEASURED_BY = MACHINE | {"evaluation.fanouts", "evaluation.batch_size", "links.rivals"}


def register(app: typer.Typer) -> None:
    """Add `khop evaluate`."""
    fields = [entry for entry in run_fields() if entry.path in _MEASURED_BY]
    app.command("evaluate")(takes_run_options(fields, default="as in the run")(_evaluate))


def _evaluate(
    run_folder: Folder,
    split: Measured = Split.TEST,
    checkpoint: Weights = Checkpoint.BEST,
    as_json: AsJson = False,
    *,
    options: Options,
) -> None:
    """Measure a trained model again: on another split, with other weights, exactly or on samples."""
    console = Console(stderr=as_json)
    with bytes_bar() as notice:
        run = prepare(with_options(read_run(run_folder), options), cache_folder(), notice)
    torch.set_num_threads(run.config.compute_threads)
    run.restore(run_folder / CHECKPOINTS / checkpoint)
    with watching(console) as watcher:
        scores = run.scores(run.subject.splits if split is Split.ALL else (split.value,), watcher.evaluating)
    outcome = {
        "run": str(run_folder),
        "checkpoint": checkpoint.value,
        **{score_name(name, run.task.metric): score for name, score in scores.items()},
    }
    say(console, *two_columns(outcome))
    if as_json:
        print(json.dumps(outcome))
