"""`khop evaluate`: score a trained run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import read_run
from khop.cli.commands.shared import (
    AllowCode,
    Baselines,
    CheckpointChoice,
    RankOptions,
    RankReport,
    RunFolder,
)
from khop.cli.options import Options, ShortHelp, named, takes_groups, takes_run_options
from khop.run.fields import run_fields
from khop.run.read import MACHINE, TOGETHER


class EvaluatedSplit(StrEnum):
    """Splits that can be evaluated."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
    ALL = "all"


Measured = Annotated[EvaluatedSplit, typer.Option("--split", help="Split to evaluate; all: every split.")]
Weights = Annotated[CheckpointChoice, typer.Option("--checkpoint", help="Checkpoint to evaluate.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="TEXT",
        help="Metric to compute in addition to the metric of the run; can be repeated.",
        show_default=False,
    ),
]
PredictionFile = Annotated[
    Path | None,
    typer.Option(
        "--predictions",
        metavar="FILE.parquet",
        help="File to write, with one row per node or link of the split: imported ids, class names, scores.",
        show_default=False,
    ),
]
_MEASURED_BY = (
    MACHINE
    | TOGETHER
    | {
        "evaluation.fanouts",
        "evaluation.batch_size",
        "evaluation.batch_edges",
        "links.eval_negatives",
        "links.val_negatives",
        "links.test_negatives",
        "links.filtered",
        "links.ranking",
    }
)


def register(app: typer.Typer) -> None:
    """Add `khop evaluate`."""
    fields = [entry for entry in run_fields() if entry.path in _MEASURED_BY]
    app.command("evaluate", cls=ShortHelp)(
        takes_run_options(fields, default="as in the run")(takes_groups(_evaluate))
    )


def _evaluate(
    run_folder: RunFolder,
    split: Measured = EvaluatedSplit.TEST,
    checkpoint: Weights = CheckpointChoice.BEST,
    metric: Metrics = None,
    predictions: PredictionFile = None,
    baselines: Baselines = False,
    *,
    ranks: RankOptions,
    report: RankReport,
    allow_code: AllowCode = None,
    options: Options,
) -> None:
    """Evaluate a trained model on a split, exactly or on sampled neighborhoods."""
    raw = read_run(run_folder, allow_code or (), options)
    from khop.run.check import checked

    config = checked(raw)
    from khop.cli.trained import TrainedCall, evaluate

    request = TrainedCall(
        run_folder,
        raw,
        () if split is EvaluatedSplit.ALL else (split.value,),
        checkpoint.value,
        tuple(metric or ()),
        named(options),
        report.as_json,
        predictions,
        baselines,
    )
    evaluate(request, config, ranks)
