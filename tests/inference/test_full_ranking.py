"""Full ranking is that of its definition, ties included, however the work is cut into chunks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.retrieval import retrieval_normalized_dcg

from khop.inference.full_ranking import FullRanking, full_ranking
from reference.orders import orders

few = st.sampled_from([0.0, 0.5, -1.0, 3.0])


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
