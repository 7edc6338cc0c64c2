"""Ranking metrics are those of their definitions, ties included."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from khop.training.ranking import Places, average_precision, binary_roc_auc
from reference.orders import orders

few = st.sampled_from([0.0, 0.5, -1.0, 3.0])
many = st.floats(-1e6, 1e6, width=32)
rows = st.lists(st.tuples(st.one_of(few, many), st.booleans()), min_size=2, max_size=40).filter(
    lambda found: len({label for _, label in found}) == 2
)


@given(rows)
def test_auc_is_the_share_of_pairs_in_order_and_not_a_bit_off(found: list[tuple[float, bool]]) -> None:
    positives, negatives = ([score for score, label in found if label is kind] for kind in (True, False))
    halves = sum((p > n) * 2 + (p == n) for p in positives for n in negatives)
    scores, labels = torch.tensor([s for s, _ in found]), torch.tensor([label for _, label in found])
    assert binary_roc_auc(scores.double(), labels) == halves / (2 * len(positives) * len(negatives))


@given(rows)
def test_average_precision_is_that_of_each_threshold(found: list[tuple[float, bool]]) -> None:
    total, reached, expected = sum(label for _, label in found), 0, 0.0
    for threshold in sorted({score for score, _ in found}, reverse=True):
        chosen = [label for score, label in found if score >= threshold]
        expected += (sum(chosen) - reached) / total * sum(chosen) / len(chosen)
        reached = sum(chosen)
    scores, labels = torch.tensor([s for s, _ in found]), torch.tensor([label for _, label in found])
    assert average_precision(scores.double(), labels) == pytest.approx(expected, abs=1e-12)


def test_auc_and_average_precision_are_what_torchmetrics_finds() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(500, generator=generator).mul(40).round() / 40  # with ties
    labels = (scores + torch.rand(500, generator=generator) > 1).long()
    assert binary_roc_auc(scores, labels) == pytest.approx(float(binary_auroc(scores, labels)), abs=1e-6)
    ours = average_precision(scores, labels)
    assert ours == pytest.approx(float(binary_average_precision(scores, labels)), abs=1e-6)


def test_auc_counts_scores_that_differ_in_the_last_bit() -> None:
    scores = torch.tensor([1.0, 1.0 + 2**-23])
    assert binary_roc_auc(scores, torch.tensor([0, 1])) == 1.0
    assert binary_roc_auc(scores, torch.tensor([1, 0])) == 0.0


@pytest.mark.parametrize(("label", "kind"), [(0, "negative"), (1, "positive")])
def test_auc_needs_both_kinds(label: int, kind: str) -> None:
    with pytest.raises(ValueError, match=f"roc-auc: all 3 labels are {kind}, it needs both kinds"):
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
def test_ties_score_what_a_random_order_gives_on_average(scores: list[float], k: int) -> None:
    """Candidate 0 is the positive; every admissible order of all candidates is written out."""
    places = [order.index(0) + 1 for order in orders(scores)]
    found = Places.of(torch.tensor(scores[:1]), torch.tensor([scores[1:]]))
    assert found.mean_reciprocal_rank() == pytest.approx(sum(1 / p for p in places) / len(places), abs=1e-12)
    assert found.hits(k) == pytest.approx(sum(p <= k for p in places) / len(places), abs=1e-12)


def test_a_place_that_is_certain_has_its_exact_reciprocal() -> None:
    negatives = torch.arange(100_000.0)
    assert Places.of(torch.tensor([0.5]), negatives[None]).mean_reciprocal_rank() == 1 / 100_000


def test_a_scorer_that_knows_nothing_scores_as_guessing_does() -> None:
    places = Places.of(torch.zeros(7), torch.zeros(7, 9))
    assert places.hits(3) == pytest.approx(0.3)
    assert places.mean_reciprocal_rank() == pytest.approx(sum(1 / n for n in range(1, 11)) / 10)


def test_nothing_to_rank_is_an_error() -> None:
    places = Places.of(torch.zeros(0), torch.zeros(0, 3))
    with pytest.raises(ValueError, match="mrr: there are no positives"):
        places.mean_reciprocal_rank()
    with pytest.raises(ValueError, match="hits@3: there are no positives"):
        places.hits(3)
    with pytest.raises(ValueError, match="k 0: must be at least 1"):
        Places.of(torch.zeros(1), torch.zeros(1, 1)).hits(0)
