"""Ranking metrics are those of their definitions, ties included, however the work is cut into chunks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision
from torchmetrics.functional.retrieval import retrieval_normalized_dcg

from khop.training.ranking import FullRanking, Places, average_precision, binary_roc_auc, full_ranking

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


def orders(scores: list[float]) -> list[tuple[int, ...]]:
    """Every order of the candidates that goes down in score."""
    found = itertools.permutations(range(len(scores)))
    return [o for o in found if all(scores[a] >= scores[b] for a, b in itertools.pairwise(o))]


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


def brute_force(scores: Tensor, held_out: Tensor, seen: Tensor, k: int) -> tuple[float, float]:
    """Recall@k and NDCG@k over every admissible order of every query's candidates."""
    recalls, ndcgs = [], []
    masked = set(map(tuple, seen.T.tolist()))
    wanted = {pair for pair in map(tuple, held_out.T.tolist()) if pair not in masked}
    for query in sorted({query for query, _ in wanted}):
        relevant = {c for q, c in wanted if q == query}
        candidates = [c for c in range(scores.shape[1]) if (query, c) not in masked]
        found = orders([float(scores[query, c]) for c in candidates])
        best = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(relevant)) + 1))
        hits = [[p for p, at in enumerate(o, 1) if p <= k and candidates[at] in relevant] for o in found]
        recalls.append(sum(map(len, hits)) / len(found) / len(relevant))
        ndcgs.append(sum(1 / math.log2(p + 1) for of in hits for p in of) / len(found) / best)
    return sum(recalls) / len(recalls), sum(ndcgs) / len(ndcgs)


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=9)


@given(
    st.lists(few, min_size=20, max_size=20),
    pairs,
    pairs,
    st.integers(1, 7),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_full_ranking_is_that_of_every_order(
    values: list[float], wanted: list[tuple[int, int]], known: list[tuple[int, int]], k: int, chunk_bytes: int
) -> None:
    scores = torch.tensor(values).view(4, 5)
    held_out, seen = torch.tensor(wanted).T, torch.tensor(known).T
    if set(wanted) <= set(known):
        with pytest.raises(ValueError, match="nothing to find"):
            full_ranking(lambda queries: scores[queries], held_out, seen, 5, [k])
        return
    found = full_ranking(lambda queries: scores[queries], held_out, seen, 5, [k], chunk_bytes=chunk_bytes)
    recall, ndcg = brute_force(scores, held_out, seen, k)
    assert found.recall[k] == pytest.approx(recall, abs=1e-12)
    assert found.ndcg[k] == pytest.approx(ndcg, abs=1e-12)


def test_full_ndcg_is_what_torchmetrics_finds() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(30, 200, generator=generator).mul(8).round()  # with ties
    relevant = torch.rand(30, 200, generator=generator) < 0.05
    relevant[:, 0] = True
    found = full_ranking(
        lambda q: scores[q], relevant.nonzero().T, torch.empty(2, 0, dtype=torch.int64), 200, [5, 20]
    )
    for k in (5, 20):
        theirs = [float(retrieval_normalized_dcg(scores[q], relevant[q], top_k=k)) for q in range(30)]
        assert found.ndcg[k] == pytest.approx(sum(theirs) / 30, abs=1e-6)
    assert found.queries == 30


def test_scores_are_asked_for_in_chunks_and_left_as_they_are() -> None:
    scores = torch.arange(50.0).view(10, 5)
    asked: list[int] = []

    def scores_of(queries: Tensor) -> Tensor:
        asked.append(queries.numel())
        return scores[queries[0] : queries[-1] + 1]  # a view

    held_out, seen = torch.stack([torch.arange(10), torch.full((10,), 3)]), torch.tensor([[2], [4]])
    full_ranking(scores_of, held_out, seen, 5, chunk_bytes=4 * 16 * 5)
    assert asked == [4, 4, 2]
    assert torch.equal(scores, torch.arange(50.0).view(10, 5))


NONE = torch.empty(2, 0, dtype=torch.int64)


def ranked(held_out: Tensor, at: list[int], scores: Tensor) -> FullRanking:
    return full_ranking(lambda queries: scores, held_out, NONE, 3, at)


def test_what_cannot_be_ranked_is_named() -> None:
    one = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match="held_out has query 0 with candidate 3; candidates are 0 to 2"):
        ranked(torch.tensor([[0], [3]]), [1], torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"held_out is \(1, 2\), must be \(2, pairs\)"):
        ranked(one.T, [1], torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"scores are \(1, 2\), must be \(queries, candidates\): \(1, 3\)"):
        ranked(one, [1], torch.zeros(1, 2))
    with pytest.raises(ValueError, match="at is empty"):
        ranked(one, [], torch.zeros(1, 3))


def test_pairs_that_are_no_ids_are_named() -> None:
    with pytest.raises(ValueError, match=r"full ranking: held_out is torch.float32: give ids, int64"):
        full_ranking(
            lambda queries: torch.rand(queries.numel(), 3), torch.ones(2, 1), torch.ones(2, 0).long(), 3
        )
