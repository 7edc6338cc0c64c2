"""Scores are those of their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.training.metrics import accuracy, f1_macro, f1_micro, mean_average_precision, roc_auc


def test_accuracy_is_the_share_of_right_answers() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0], [0.5, 0.5]])
    assert accuracy(logits, torch.tensor([0, 0, 1, 0])) == 0.75


def pairs_in_order(scores: Tensor, positive: Tensor) -> float:
    """The share of (positive, negative) pairs that the score puts in order, ties by half."""
    differences = scores[positive].unsqueeze(1) - scores[~positive].unsqueeze(0)
    return float(((differences > 0).double() + 0.5 * (differences == 0).double()).mean())


values = st.sampled_from([0.0, 0.25, 1.0, -3.0, 30.0, 31.0, 200.0, -200.0])


@given(st.lists(st.tuples(values, values, st.booleans()), min_size=2, max_size=20))
def test_roc_auc_of_two_classes_is_the_share_of_pairs_in_order(rows: list[tuple[float, float, bool]]) -> None:
    logits = torch.tensor([row[:2] for row in rows], dtype=torch.float64)
    labels = torch.tensor([int(row[2]) for row in rows])
    if labels.unique().numel() < 2:
        with pytest.raises(ValueError, match=r"roc-auc: all .* labels are .*, it needs two classes"):
            roc_auc(logits, labels)
        return
    expected = pairs_in_order(logits[:, 1] - logits[:, 0], labels == 1)
    assert roc_auc(logits, labels) == pytest.approx(expected, abs=1e-6)


def test_roc_auc_of_more_classes_is_the_mean_of_each_against_the_rest() -> None:
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(60) % 3
    shares = logits.softmax(dim=1)
    expected = sum(pairs_in_order(shares[:, label], labels == label) for label in range(3)) / 3
    assert roc_auc(logits, labels) == pytest.approx(expected, abs=1e-6)


def test_f1_is_that_of_its_definition_and_macro_counts_classes_that_are_there() -> None:
    # predicted 0, 0, 1, 2, 1 of labels 0, 1, 1, 1, 1; nobody speaks of class 3
    logits = torch.eye(4)[torch.tensor([0, 0, 1, 2, 1])]
    labels = torch.tensor([0, 1, 1, 1, 1])
    of_classes = [2 * 1 / (2 + 1), 2 * 2 / (2 + 4), 0.0]
    assert f1_macro(logits, labels) == pytest.approx(sum(of_classes) / 3)
    assert f1_micro(logits, labels) == accuracy(logits, labels) == 0.6


def test_average_precision_is_of_class_1_of_two_or_the_mean_of_each_against_the_rest() -> None:
    ranked = torch.tensor([[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]])
    assert mean_average_precision(ranked, torch.tensor([1, 0, 1])) == pytest.approx((1 + 2 / 3) / 2)
    three = torch.eye(3)[torch.tensor([0, 1, 1])]
    # class 0: found first; class 2: last of a step of three equals, after none
    assert mean_average_precision(three, torch.tensor([0, 1, 2])) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
