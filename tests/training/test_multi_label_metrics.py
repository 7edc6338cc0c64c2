"""Metrics of label sets are those of scikit-learn's definitions, over the known entries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.training.metrics import average_precision, binary_roc_auc
from khop.training.multi_label_metrics import (
    UNKNOWN,
    entries_of,
    f1_macro,
    f1_micro,
    mean_average_precision,
    roc_auc,
)

entry = st.tuples(st.sampled_from([-2.0, 0.0, 1.0, 3.0]), st.sampled_from([-1, 0, 1]))
rows = st.lists(st.tuples(entry, entry, entry), min_size=1, max_size=12)


def f1(pairs: list[tuple[float, int]]) -> float | None:
    """F1 of (logit, entry); None if nothing is predicted or there."""
    known = [(logit > 0, value == 1) for logit, value in pairs if value != UNKNOWN]
    found = sum(predicted and actual for predicted, actual in known)
    either = sum(predicted + actual for predicted, actual in known)
    return 2 * found / either if either else None


@given(rows)
def test_f1_counts_known_entries(given_rows: list[tuple[tuple[float, int], ...]]) -> None:
    logits = torch.tensor([[logit for logit, _ in row] for row in given_rows])
    labels = torch.tensor([[value for _, value in row] for row in given_rows], dtype=torch.int8)
    assert f1_micro(logits, labels) == pytest.approx(f1([pair for row in given_rows for pair in row]) or 0.0)
    of_labels = [found for column in zip(*given_rows, strict=True) if (found := f1(list(column))) is not None]
    assert f1_macro(logits, labels) == pytest.approx(sum(of_labels) / max(len(of_labels), 1))


def test_ranking_metrics_are_means_over_labels_that_have_them() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 3.0, 2.0], [9.0, 9.0, 9.0]])
    labels = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [-1, -1, -1]], dtype=torch.int8)
    areas = [binary_roc_auc(logits[:3, n].double(), labels[:3, n] == 1) for n in (0, 1)]
    assert roc_auc(logits, labels) == sum(areas) / 2
    precisions = [average_precision(logits[:3, n].double(), labels[:3, n] == 1) for n in range(3)]
    assert mean_average_precision(logits, labels) == pytest.approx(sum(precisions) / 3)


def test_without_both_kinds_there_is_no_ranking() -> None:
    labels = torch.tensor([[0], [-1]], dtype=torch.int8)
    with pytest.raises(ValueError, match="roc-auc: no label has known entries of both kinds"):
        roc_auc(torch.zeros(2, 1), labels)
    with pytest.raises(ValueError, match="average-precision: no label has a positive entry"):
        mean_average_precision(torch.zeros(2, 1), labels)


@pytest.mark.parametrize(
    ("labels", "entries"),
    [
        (torch.tensor([0, 1, 255], dtype=torch.uint8), [0, 1, -1]),
        (torch.tensor([0, 1, -1]), [0, 1, -1]),
        (torch.tensor([0.0, 1.0, math.nan]), [0, 1, -1]),
        (torch.tensor([False, True]), [0, 1]),
    ],
)
def test_entries_of_any_dtype_are_one_zero_or_unknown(labels: torch.Tensor, entries: list[int]) -> None:
    assert entries_of(labels).tolist() == entries
