"""Metrics of regression are those of their definitions, without unknown labels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.training.number_metrics import mae, r2, rmse

numbers = st.floats(-100, 100)
rows = st.lists(st.tuples(numbers, st.one_of(numbers, st.just(math.nan))), min_size=1, max_size=20)


@given(rows)
def test_errors_are_means_over_the_known_labels(rows: list[tuple[float, float]]) -> None:
    outputs, labels = torch.tensor(rows, dtype=torch.float64).unsqueeze(2).unbind(1)
    errors = [output - label for output, label in rows if not math.isnan(label)]
    if errors:
        squared = sum(error**2 for error in errors) / len(errors)
        assert rmse(outputs, labels) == pytest.approx(math.sqrt(squared))
        assert mae(outputs, labels) == pytest.approx(sum(map(abs, errors)) / len(errors))


def test_r2_is_the_share_of_the_variance_that_is_explained() -> None:
    labels = torch.tensor([[1.0, 5.0], [2.0, math.nan], [3.0, 9.0]])
    assert r2(labels.nan_to_num(), labels) == 1.0
    mean = torch.tensor([[2.0, 7.0]] * 3)
    assert r2(mean, labels) == 0.0
    outputs = torch.tensor([[1.0, 7.0], [2.0, 0.0], [4.0, 7.0]])
    assert r2(outputs, labels) == pytest.approx(((1 - 1 / 2) + 0) / 2)


def test_equal_labels_have_no_r2() -> None:
    with pytest.raises(ValueError, match="r2: all labels of a column are equal"):
        r2(torch.zeros(2, 1), torch.ones(2, 1))
