"""The work of `khop evaluate`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from khop.api.names_of import names_of
from khop.cli.baselines import OwnFeatures, label_propagation_scores
from khop.cli.bytes_bar import counting_bar
from khop.cli.commands.shared import RankOptions
from khop.cli.lines import tell
from khop.cli.next_steps import reading, say_next
from khop.cli.progress import beside_scores, two_columns
from khop.cli.ranks import as_ranks, run_of_rank
from khop.cli.terminal import say
from khop.config.build import Run
from khop.config.read import RawRun
from khop.config.run_task import Evaluation
from khop.config.saved_run import CHECKPOINTS
from khop.config.values import RunConfig
from khop.inference.parquet_file import check_parquet, write_parquet
from khop.training.tasks import score_name


@dataclass(frozen=True)
class Request:
    """The arguments of one call of the command, the same for every rank."""

    folder: Path
    raw: RawRun
    splits: tuple[str, ...]  # empty: all splits of the run
    checkpoint: str
    metrics: tuple[str, ...]
    given: frozenset[str]  # options given in this call, not in the run
    as_json: bool
    predictions: Path | None
    baselines: bool  # train and score the baseline of own features too


def evaluate(request: Request, config: RunConfig, ranks: RankOptions) -> None:
    """Evaluate as all ranks."""
    as_ranks(evaluate_rank, request, config, ranks)


def evaluate_rank(rank: int, device: torch.device, request: Request) -> None:
    """Evaluate as one rank, often the only one. Rank 0 prints."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    if request.predictions is not None and rank == 0:
        check_parquet(request.predictions, "--predictions")
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run = run_of_rank(request.raw, device, request.given, checkpoint)
    run.restore(checkpoint, tell, request.raw.options)
    baseline = OwnFeatures.of(run, request.raw, request.folder) if request.baselines else None
    with counting_bar("evaluating", rank) as progress:
        arguments = (request.splits or run.run_task.splits, progress, request.metrics)
        if request.predictions is None:
            scores = run.compared(*arguments)
        else:
            scores = _written(run.evaluated(*arguments), run, request.predictions, rank)
        if baseline is not None:
            baseline.load(request.given)
            scores |= baseline.scores(*arguments)
            scores |= label_propagation_scores(run, arguments[0], request.metrics)
    outcome: dict[str, object] = {
        "run": str(request.folder),
        "checkpoint": request.checkpoint,
        **{score_name(name, run.task.metric): score for name, score in scores.items()},
    }
    if request.predictions is not None:
        outcome["predictions"] = str(request.predictions)
    say(console, *two_columns(beside_scores(outcome)))
    report = ("khop", "report", str(request.folder), "-o", str(request.folder / "report.html"))
    say_next(console, report if request.predictions is None else reading(request.predictions))
    if request.as_json and rank == 0:
        print(json.dumps(outcome))


def _written(evaluation: Evaluation, run: Run, path: Path, rank: int) -> dict[str, float]:
    """Write the predictions on rank 0; return the scores."""
    if rank == 0:
        write_parquet(path, evaluation.predictions.pieces(names_of(run.graph)))
    return {**evaluation.scores, **evaluation.baselines}
