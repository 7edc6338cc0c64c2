"""Scores and baselines in a record."""

from __future__ import annotations

from khop.reporting.scores import BASELINES, baselines_of, plain_scores
from khop.training import baselines


def test_names_of_baselines_that_stand_apart_from_torch_are_those_of_training() -> None:
    assert set(BASELINES) == set(baselines.BASELINES)


def test_baselines_are_not_scores_of_their_own() -> None:
    record = {
        "epoch": 0,
        "val_mrr": 0.5,
        "val_popularity_mrr": 0.4,
        "test_own_features_mrr": 0.1,
        "test_mrr": 0.3,
    }
    assert plain_scores(record) == {"val_mrr": 0.5, "test_mrr": 0.3}
    assert baselines_of(record)["test_mrr"] == {"test_own_features_mrr": "own features"}
