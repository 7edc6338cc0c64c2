"""Scores and baselines in a record of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

Record = Mapping[str, object]  # one line of metrics.jsonl
SCORES = ("train", "val", "test")
BASELINES = (
    "majority",
    "mean",
    "popularity",
    "own-features",
    "label-propagation",
)  # of khop.training.baselines, without torch


def number(value: object) -> float:
    """Return a value of a record as a number."""
    assert isinstance(value, int | float), value
    return value


def scores_of(record: Record) -> dict[str, float]:
    """Return the scores of a record, such as "val_accuracy" -> 0.8, in the order train, val, test."""
    named = [(name, split) for split in SCORES for name in record if name.startswith(f"{split}_")]
    return {name: number(record[name]) for name, _ in named}


def baselines_of(record: Record) -> dict[str, dict[str, str]]:
    """Return by score the names and the words of its baselines: "val_majority_accuracy", "majority"."""
    found: dict[str, dict[str, str]] = {}
    for split, baseline in product(SCORES, BASELINES):
        prefix = f"{split}_{baseline.replace('-', '_')}_"
        for name in record:
            if name.startswith(prefix):
                score = f"{split}_{name.removeprefix(prefix)}"
                found.setdefault(score, {})[name] = baseline.replace("-", " ")
    return found


def plain_scores(record: Record) -> dict[str, float]:
    """Return the scores of a record without the baselines."""
    hidden = {name for of_score in baselines_of(record).values() for name in of_score}
    return {name: value for name, value in scores_of(record).items() if name not in hidden}
