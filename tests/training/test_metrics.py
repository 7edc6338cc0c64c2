"""Scores are those of their definitions.

Metrics of regression are those of their definitions, without unknown labels.

Ranking metrics are those of their definitions, ties included.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.batch import Batch
from khop.training.metrics import (
    Places,
    accuracy,
    average_precision,
    binary_roc_auc,
    f1_macro,
    f1_micro,
    mae,
    mean_average_precision,
    r2,
    rmse,
    roc_auc,
)
from khop.training.tasks import LabelScale, NodeRegression
from reference.orders import orders
from support.small_graphs import one_type


def test_accuracy_is_the_share_of_right_answers() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0], [0.5, 0.5]])
    assert accuracy(logits, torch.tensor([0, 0, 1, 0])) == 0.75


def pairs_in_order(scores: Tensor, positive: Tensor) -> float:
    """The share of (positive, negative) pairs that the score puts in order, ties by half."""
    differences = scores[positive].unsqueeze(1) - scores[~positive].unsqueeze(0)
    return float(((differences > 0).double() + 0.5 * (differences == 0).double()).mean())


values = st.sampled_from([0.0, 0.25, 1.0, -3.0, 30.0, 31.0, 200.0, -200.0])


@pytest.mark.long
@given(st.lists(st.tuples(values, values, st.booleans()), min_size=2, max_size=20))
def test_roc_auc_of_two_classes_is_the_share_of_pairs_in_order(rows: list[tuple[float, float, bool]]) -> None:
    logits = torch.tensor([row[:2] for row in rows], dtype=torch.float64)
    labels = torch.tensor([int(row[2]) for row in rows])
    if labels.unique().numel() < 2:
        with pytest.raises(ValueError, match=r"roc-auc: all .* labels are .*, two classes are required"):
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
    with pytest.raises(ValueError, match="r2: a column of the labels has no known number"):
        r2(torch.zeros(2, 2), torch.tensor([[1.0, torch.nan], [2.0, torch.nan]]))


few = st.sampled_from([0.0, 0.5, -1.0, 3.0])
many = st.floats(-1e6, 1e6, width=32)
ranking_rows = st.lists(st.tuples(st.one_of(few, many), st.booleans()), min_size=2, max_size=40).filter(
    lambda found: len({label for _, label in found}) == 2
)


@given(ranking_rows)
def test_auc_is_the_share_of_pairs_in_order_and_not_a_bit_off(found: list[tuple[float, bool]]) -> None:
    positives, negatives = ([score for score, label in found if label is kind] for kind in (True, False))
    halves = sum((p > n) * 2 + (p == n) for p in positives for n in negatives)
    scores, labels = torch.tensor([s for s, _ in found]), torch.tensor([label for _, label in found])
    assert binary_roc_auc(scores.double(), labels) == halves / (2 * len(positives) * len(negatives))


@given(ranking_rows)
def test_average_precision_is_that_of_each_threshold(found: list[tuple[float, bool]]) -> None:
    total, reached, expected = sum(label for _, label in found), 0, 0.0
    for threshold in sorted({score for score, _ in found}, reverse=True):
        chosen = [label for score, label in found if score >= threshold]
        expected += (sum(chosen) - reached) / total * sum(chosen) / len(chosen)
        reached = sum(chosen)
    scores, labels = torch.tensor([s for s, _ in found]), torch.tensor([label for _, label in found])
    assert average_precision(scores.double(), labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.long
def test_auc_and_average_precision_are_what_torchmetrics_finds() -> None:
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(500, generator=generator).mul(40).round() / 40  # with ties
    labels = (scores + torch.rand(500, generator=generator) > 1).long()
    assert binary_roc_auc(scores, labels) == pytest.approx(float(binary_auroc(scores, labels)), abs=1e-6)
    ours = average_precision(scores, labels)
    assert ours == pytest.approx(float(binary_average_precision(scores, labels)), abs=1e-6)


def test_classes_without_a_label_have_no_area() -> None:
    logits, labels = torch.eye(4)[:3] * 5, torch.arange(3)
    assert roc_auc(logits, labels) == 1.0
    logits, labels = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3
    shares = logits.double().softmax(dim=1)
    expected = sum(pairs_in_order(shares[:, label], labels == label) for label in range(3)) / 3
    assert roc_auc(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_auc_counts_scores_that_differ_in_the_last_bit() -> None:
    scores = torch.tensor([1.0, 1.0 + 2**-23])
    assert binary_roc_auc(scores, torch.tensor([0, 1])) == 1.0
    assert binary_roc_auc(scores, torch.tensor([1, 0])) == 0.0


@pytest.mark.parametrize(("label", "kind"), [(0, "negative"), (1, "positive")])
def test_auc_needs_both_kinds(label: int, kind: str) -> None:
    with pytest.raises(ValueError, match=f"roc-auc: all 3 labels are {kind}, and both kinds are required"):
        binary_roc_auc(torch.arange(3.0), torch.full((3,), label))


def test_average_precision_needs_a_positive() -> None:
    with pytest.raises(ValueError, match="none of 2 labels is positive"):
        average_precision(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_has_no_order_is_named(value: float) -> None:
    with pytest.raises(ValueError, match=rf"roc-auc: the score at \[1\] is {value}"):
        binary_roc_auc(torch.tensor([0.0, value]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=rf"ranking: the score at \[0, 1\] is {value}"):
        Places.of(torch.zeros(1), torch.tensor([[0.0, value]]))


@given(st.lists(few, min_size=1, max_size=5), st.integers(1, 6))
def test_a_tie_has_the_mean_rank_as_in_the_evaluators_of_ogb_and_tgb(scores: list[float], k: int) -> None:
    """Candidate 0 is the positive; every admissible order of all candidates is written out."""
    places = [order.index(0) + 1 for order in orders(scores)]
    found, rank = Places.of(torch.tensor(scores[:1]), torch.tensor([scores[1:]])), sum(places) / len(places)
    assert found.mean_reciprocal_rank() == pytest.approx(1 / rank, abs=1e-12)
    assert found.hits(k) == (rank <= k)
    assert found.ndcg(k) == pytest.approx((rank <= k) / math.log2(rank + 1), abs=1e-12)
    assert float(found.reached(k)) == pytest.approx(sum(p <= k for p in places) / len(places), abs=1e-12)


def test_a_place_that_is_certain_has_its_exact_reciprocal() -> None:
    negatives = torch.arange(100_000.0)
    assert Places.of(torch.tensor([0.5]), negatives[None]).mean_reciprocal_rank() == 1 / 100_000


def test_a_scorer_that_knows_nothing_gets_the_middle_rank() -> None:
    places = Places.of(torch.zeros(7), torch.zeros(7, 9))
    assert (places.hits(5), places.hits(6)) == (0, 1)
    assert places.mean_reciprocal_rank() == pytest.approx(1 / 5.5)


def test_nothing_to_rank_is_an_error() -> None:
    places = Places.of(torch.zeros(0), torch.zeros(0, 3))
    with pytest.raises(ValueError, match="mrr: there are no positives"):
        places.mean_reciprocal_rank()
    with pytest.raises(ValueError, match="hits@3: there are no positives"):
        places.hits(3)
    with pytest.raises(ValueError, match="k 0: must be at least 1"):
        Places.of(torch.zeros(1), torch.zeros(1, 1)).hits(0)


# Regression: errors of known labels, in units of the training labels' deviation.


def batch_of(labels: torch.Tensor) -> Batch:
    batch = one_type().batch(torch.arange(labels.shape[0]), [1], "node")
    return replace(batch, seed_columns={"node": {"y": labels}})


@pytest.mark.parametrize(("loss", "expected"), [("mse", [0.25, 0.0, 4.0]), ("mae", [0.5, 0.0, 2.0])])
def test_losses_are_errors_in_units_of_the_deviation_and_zero_where_the_label_is_unknown(
    loss: str, expected: list[float]
) -> None:
    task = NodeRegression("node", "y", loss, scale=LabelScale((10.0,), (2.0,)))  # type: ignore[arg-type]
    output = torch.tensor([[1.0], [7.0], [9.0]], requires_grad=True)
    losses = task.losses(output, batch_of(torch.tensor([2.0, math.nan, 5.0])))
    assert losses.tolist() == expected
    losses.sum().backward()
    assert output.grad is not None
    assert output.grad[1].tolist() == [0.0]
    assert output.grad[0] != 0


def test_several_numbers_count_as_their_mean_over_the_known_ones() -> None:
    task = NodeRegression("node", "y", scale=LabelScale((0.0, 0.0), (1.0, 2.0)))
    labels = torch.tensor([[1.0, 4.0], [math.nan, 2.0]])
    losses = task.losses(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), batch_of(labels))
    assert losses.tolist() == [(1 + 4) / 2, 1.0]


def test_integer_labels_are_numbers_too() -> None:
    task = NodeRegression("node", "y", metric="mae")
    assert task.losses(torch.tensor([[1.5]]), batch_of(torch.tensor([3]))).tolist() == [2.25]
    assert task.score(torch.tensor([[1.5]]), torch.tensor([3]), torch.tensor([0])) == 1.5


def test_scores_need_a_known_label_and_outputs_that_are_numbers() -> None:
    task, nodes = NodeRegression("node", "y"), torch.tensor([4, 7])
    assert task.score(torch.zeros(2, 1), torch.tensor([math.nan, 3.0]), nodes) == 3.0
    with pytest.raises(ValueError, match="rmse: no node of 'node' has a known y"):
        task.score(torch.zeros(2, 1), torch.full((2,), math.nan), nodes)
    with pytest.raises(ValueError, match="rmse: the model's output for node 7 of 'node' is NaN"):
        task.score(torch.tensor([[0.0], [math.nan]]), torch.ones(2), nodes)
    with pytest.raises(ValueError, match=r"y of 'node' has 1 values per row, .* give the model outputs=1"):
        task.score(torch.zeros(2, 3), torch.ones(2), nodes)


def test_a_scale_is_that_of_the_known_labels_and_constant_numbers_have_deviation_one() -> None:
    labels = torch.tensor([[1.0, 5.0], [3.0, 5.0], [math.nan, 5.0]])
    assert LabelScale.of(labels) == LabelScale((2.0, 5.0), (1.0, 1.0))
    assert LabelScale.of(torch.tensor([2, 4])) == LabelScale((3.0,), (1.0,))
    assert LabelScale.of(torch.full((3,), 0.1, dtype=torch.float64)).deviation == (1.0,)
    with pytest.raises(ValueError, match="labels: none is known"):
        LabelScale.of(torch.full((2,), math.nan))


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="deviations above 0"):
        LabelScale((0.0,), (0.0,))
    with pytest.raises(ValueError, match="must have equal lengths"):
        LabelScale((0.0,), (1.0, 1.0))
    with pytest.raises(ValueError, match="loss 'x': must be one of mse, mae"):
        NodeRegression("node", "y", "x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="metric 'x': must be one of rmse, mae, r2"):
        NodeRegression("node", "y", metric="x")  # type: ignore[arg-type]
