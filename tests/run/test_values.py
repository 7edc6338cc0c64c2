"""The settings of a run: values that cannot be together, and that do not change."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from khop.run.check import checked
from khop.run.read import RawRun
from khop.run.values import RunConfig


def run_of(**values: object) -> RunConfig:
    return checked(RawRun({"graph": "g", **values}, "run.toml"))


def test_a_run_cannot_be_changed() -> None:
    run = run_of()
    with pytest.raises(ValidationError, match="frozen"):
        run.threads = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        run.training.epochs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"model": {"embedding_update": "sparse", "embedding": 0}}, "but the model has no embeddings"),
        (
            {"sampler": {"time": "day", "kind": "shadow"}},
            "evaluation over all neighbors would use later edges",
        ),
        (
            {"model": {"layers": 3}, "sampler": {"fanouts": [15, 10]}},
            "sampler.fanouts has 2 entries, model.layers is 3",
        ),
        ({"evaluation": {"fanouts": [5]}}, "evaluation.fanouts has 1 entry, sampler.fanouts make 2 layers"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tables: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        run_of(**tables)
