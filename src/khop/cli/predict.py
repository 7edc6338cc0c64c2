"""The work of `khop predict`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from khop.cli.bytes_bar import counting_bar
from khop.cli.lines import tell
from khop.cli.next_steps import reading, say_next
from khop.cli.progress import two_columns
from khop.cli.ranks import run_of_rank
from khop.cli.terminal import say
from khop.config.build import Run
from khop.config.predict_later import predict_later
from khop.config.read import RawRun
from khop.config.saved_run import CHECKPOINTS
from khop.inference.chunks import Progress
from khop.inference.parquet_file import check_parquet, write_parquet
from khop.inference.predictions import Columns

_SHOWN = 10  # rows without --out
_HIDDEN = ("scores", "output")  # columns too wide for a terminal


@dataclass(frozen=True)
class Request:
    """The arguments of one call of the command."""

    folder: Path
    raw: RawRun
    later: Path | None
    pairs: Path | None
    out: Path | None
    checkpoint: str
    given: frozenset[str]  # options given in this call, not in the run
    as_json: bool


def predict(request: Request) -> None:
    """Predict new nodes, or score pairs, and write or print the predictions."""
    console = Console(stderr=request.as_json)
    if request.out is not None:
        check_parquet(request.out, "--out")
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run = run_of_rank(request.raw, torch.device("cpu"), request.given, checkpoint)
    run.restore(checkpoint, tell, request.raw.options)
    outcome: dict[str, object] = {"run": str(request.folder), "checkpoint": request.checkpoint}
    named = {"graph": request.later, "pairs": request.pairs}
    outcome |= {name: str(path) for name, path in named.items() if path is not None}
    with counting_bar("predicting") as progress:
        pieces = _pieces(run, request, progress)
        if request.out is None:
            lines, outcome["rows"] = _lines(pieces)
        else:
            lines, outcome["rows"] = [], write_parquet(request.out, pieces)
            outcome["predictions"] = str(request.out)
    for line in lines:
        say(console, line)
    say(console, *two_columns(outcome))
    say_next(console, _again_to_file(request) if request.out is None else reading(request.out))
    if request.as_json:
        print(json.dumps(outcome))


def _again_to_file(request: Request) -> tuple[str, ...]:
    """Return this call with a file for its rows."""
    later = () if request.later is None else ("--graph", str(request.later))
    pairs = () if request.pairs is None else ("--pairs", str(request.pairs))
    return "khop", "predict", str(request.folder), *later, *pairs, "--out", "predictions.parquet"


def _pieces(run: Run, request: Request, progress: Progress) -> Iterator[Columns]:
    """Return the columns of consecutive rows, of new nodes or of pairs."""
    if request.pairs is not None:
        return _pairs(run, request.pairs, request.later, progress)
    if request.later is None:
        raise ValueError("--graph is missing: give a folder of new nodes, or --pairs FILE for a run of links")
    return predict_later(run, request.later, progress).pieces()


def _pairs(run: Run, pairs: Path, later: Path | None, progress: Progress) -> Iterator[Columns]:
    try:
        from khop.config.predict_pairs import predict_pairs  # needs the packages of imports
    except ImportError as error:
        raise ValueError(str(error)) from None
    return predict_pairs(run, pairs, later, progress).pieces()


def _lines(pieces: Iterator[Columns]) -> tuple[list[str], int]:
    """Return the first rows as text, one line each, with a line about the others, and the number of rows."""
    first: Mapping[str, Any] = next(pieces, {})
    count = sum(len(next(iter(piece.values()))) for piece in chain([first] if first else [], pieces))
    columns = {name: of_column for name, of_column in first.items() if name not in _HIDDEN}
    rows = zip(*(of_column.to_pylist()[:_SHOWN] for of_column in columns.values()), strict=True)
    lines = ["  ".join(columns), *("  ".join(map(_shown, row)) for row in islice(rows, _SHOWN))]
    left = count - _SHOWN
    return [*lines, *([f"and {left:,} more; --out FILE.parquet writes all"] if left > 0 else [])], count


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
