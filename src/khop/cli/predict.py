"""The work of `khop predict`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from khop.cli.lines import tell
from khop.cli.progress import two_columns, watching
from khop.cli.ranks import run_of_rank
from khop.cli.terminal import say
from khop.config.predict_later import LaterPredictions, predict_later
from khop.config.read import RawRun
from khop.config.saved_run import CHECKPOINTS
from khop.inference.parquet_file import check_parquet, write_parquet

_SHOWN = 10  # rows without --out
_HIDDEN = ("scores", "output")  # columns too wide for a terminal


@dataclass(frozen=True)
class Request:
    """The arguments of one call of the command."""

    folder: Path
    raw: RawRun
    later: Path
    out: Path | None
    checkpoint: str
    given: frozenset[str]  # options given in this call, not in the run
    as_json: bool


def predict(request: Request) -> None:
    """Predict new nodes, and write or print the predictions."""
    console = Console(stderr=request.as_json)
    if request.out is not None:
        check_parquet(request.out, "--out")
    run = run_of_rank(request.raw, torch.device("cpu"), request.given)
    run.restore(request.folder / CHECKPOINTS / request.checkpoint, tell, request.raw.options)
    with watching(console) as watcher:
        predictions = predict_later(run, request.later, watcher.evaluating)
    outcome = {
        "run": str(request.folder),
        "checkpoint": request.checkpoint,
        "graph": str(request.later),
        "rows": len(predictions),
    }
    if request.out is None:
        for line in _lines(predictions):
            say(console, line)
    else:
        write_parquet(request.out, predictions.pieces())
        outcome["predictions"] = str(request.out)
    say(console, *two_columns(outcome))
    if request.as_json:
        print(json.dumps(outcome))


def _lines(predictions: LaterPredictions) -> list[str]:
    """Return the first rows as text: one line each, and a line about the others."""
    first: Mapping[str, Any] = next(predictions.pieces())
    columns = {name: of_column for name, of_column in first.items() if name not in _HIDDEN}
    rows = zip(*(of_column.to_pylist()[:_SHOWN] for of_column in columns.values()), strict=True)
    lines = ["  ".join(columns), *("  ".join(map(_shown, row)) for row in islice(rows, _SHOWN))]
    left = len(predictions) - _SHOWN
    return [*lines, f"and {left:,} more; --out FILE.parquet writes all"] if left > 0 else lines


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
