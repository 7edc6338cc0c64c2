"""Full ranking is that of its definition, ties included, however the work is cut into chunks.

The best candidates, in blocks of any size, are those of a stable sort of all scores.

Filtered ranking of both ends equals brute force, triple by triple.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from khop import triple_ranking
from khop.inference.full_ranking import Best, FullRanking, full_ranking
from khop.models.decoders import RELATION_DECODERS, DecoderKind, DistMult, RelationDecoder
from reference.orders import orders
from support.knowledge import ENTITIES, RELATIONS, Triples

few = st.sampled_from([0.0, 0.5, -1.0, 3.0])


def average_precision(hits: list[int], k: int, count: int) -> float:
    """link_prediction_map of RelBench's package for one query, by the places of its pairs."""
    is_in = np.isin(np.arange(1, k + 1), hits)
    return float((np.cumsum(is_in) / np.arange(1, k + 1) * is_in).sum() / min(k, count))


def brute_force(scores: Tensor, held_out: Tensor, seen: Tensor, k: int) -> list[float]:
    """Recall@k, NDCG@k and MAP@k over every admissible order of every query's candidates."""
    recalls, ndcgs, precisions = [], [], []
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
        precisions.append(sum(average_precision(of, k, len(relevant)) for of in hits) / len(found))
    return [sum(of) / len(of) for of in (recalls, ndcgs, precisions)]


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=9)


@given(
    st.lists(few, min_size=20, max_size=20),
    pairs,
    pairs,
    st.integers(1, 7),
    st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from([1, 1 << 30, 1 << 61]),
)
@example([0.5, -1.0, 3.0, 0.0, 0.5] * 4, [(1, 2), (2, 0), (3, 1)], [(1, 4), (0, 2)], 2, 1 << 20, 1 << 61)
def test_full_ranking_is_that_of_every_order(
    values: list[float],
    wanted: list[tuple[int, int]],
    known: list[tuple[int, int]],
    k: int,
    chunk_bytes: int,
    apart: int,
) -> None:
    """Queries are any int64 numbers: times 5 candidates, those that are far apart are above 2^63."""
    scores = torch.tensor(values).view(4, 5)
    held_out, seen = torch.tensor(wanted).T, torch.tensor(known).T
    named = [torch.stack([pairs[0] * apart, pairs[1]], 1).T for pairs in (held_out, seen)]

    def ranking() -> FullRanking:
        return full_ranking(lambda queries: scores[queries // apart], *named, 5, [k], chunk_bytes=chunk_bytes)

    if set(wanted) <= set(known):
        with pytest.raises(ValueError, match="nothing to find"):
            ranking()
        return
    found = ranking()
    recall, ndcg, precision = brute_force(scores, held_out, seen, k)
    assert found.recall[k] == pytest.approx(recall, abs=1e-12)
    assert found.ndcg[k] == pytest.approx(ndcg, abs=1e-12)
    assert found.map[k] == pytest.approx(precision, abs=1e-12)


@pytest.mark.long
def test_full_ndcg_is_what_torchmetrics_finds() -> None:
    from torchmetrics.functional.retrieval import retrieval_normalized_dcg

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
    with pytest.raises(
        ValueError, match=r"2 queries with 4611686018427387904 candidates each, which is 2\^63"
    ):
        full_ranking(lambda queries: one, torch.tensor([[0, 1], [0, 0]]), NONE, 1 << 62, [1])
    with pytest.raises(ValueError, match="at is empty"):
        ranked(one, [], torch.zeros(1, 3))


def test_pairs_that_are_no_ids_are_named() -> None:
    with pytest.raises(ValueError, match=r"full ranking: held_out is torch.float32: give ids, int64"):
        full_ranking(
            lambda queries: torch.rand(queries.numel(), 3), torch.ones(2, 1), torch.ones(2, 0).long(), 3
        )


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 8),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 6))),
    st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_blocks_do_not_change_them(
    rows: list[list[int]], k: int, block: int, left_out: set[tuple[int, int]], allowed: list[bool]
) -> None:
    pairs = sorted(pair for pair in left_out if pair[0] < len(rows))
    scores = torch.tensor(rows, dtype=torch.float32)
    ends = torch.tensor([*zip(*pairs, strict=True)] or [[], []], dtype=torch.int64)
    best = Best.of(
        lambda span: scores[:, span], 7, k, (ends[0], ends[1]), torch.tensor(allowed), block_size=block
    )
    for query, row in enumerate(rows):
        wanted = [c for c in range(7) if allowed[c] and (query, c) not in left_out]
        wanted = sorted(wanted, key=lambda candidate: -row[candidate])[:k]
        assert best.candidates[query].tolist() == wanted + [-1] * (k - len(wanted))
        shown = best.scores[query].tolist()
        assert shown == [row[c] for c in wanted] + [float("-inf")] * (k - len(wanted))


def test_scores_that_are_not_finite_are_refused() -> None:
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"recommend: the score at .* is nan"):
        Best.of(lambda span: torch.full((1, 2), torch.nan), 2, 1, (none, none))


TRIPLES = Triples.drawn()
HELD_OUT, TRAINED = TRIPLES.all[:, ::4], torch.cat([TRIPLES.all[:, n::4] for n in (1, 2, 3)], dim=1)


def made(kind: DecoderKind) -> tuple[RelationDecoder, Tensor]:
    torch.manual_seed(2)
    decoder = RELATION_DECODERS[kind](6, RELATIONS).double()
    return decoder.requires_grad_(False), torch.randn(ENTITIES, 6, dtype=torch.float64)


def reciprocal(scores: list[float], own: int, left_out: set[int]) -> float:
    above = sum(s > scores[own] for node, s in enumerate(scores) if node not in left_out)
    tied = sum(s == scores[own] for node, s in enumerate(scores) if node not in left_out and node != own)
    return 1 / (1 + above + tied / 2)


def triple_ranking_brute_force(
    decoder: RelationDecoder, rows: Tensor, known: set[tuple[int, ...]]
) -> tuple[float, float]:
    """Mean reciprocal ranks of destinations and of sources."""
    tails, heads = [], []
    for s, r, d in HELD_OUT.T.tolist():
        # Grids equal scores up to rounding, which may order equal scores; tests of decoders compare them.
        of_tails = decoder.grid(rows[s : s + 1], rows, torch.tensor([r]))[0].tolist()
        of_heads = decoder.source_grid(rows, rows[d : d + 1], torch.tensor([r]))[0].tolist()
        every = range(ENTITIES)
        tails.append(reciprocal(of_tails, d, {n for n in every if (s, r, n) in known and n != d}))
        heads.append(reciprocal(of_heads, s, {n for n in every if (n, r, d) in known and n != s}))
    return sum(tails) / len(tails), sum(heads) / len(heads)


@pytest.mark.parametrize("kind", list(RELATION_DECODERS))
@pytest.mark.parametrize("setting", ["raw", "filtered"])
def test_both_ends_equal_brute_force(kind: DecoderKind, setting: str) -> None:
    decoder, rows = made(kind)
    every = {tuple(triple) for triple in TRIPLES.all.T.tolist()}
    tails, heads = triple_ranking_brute_force(decoder, rows, every if setting == "filtered" else set())
    known = TRAINED if setting == "filtered" else None
    if known is not None:
        known = torch.cat([known, HELD_OUT], dim=1)
    found = triple_ranking(decoder, rows, rows, HELD_OUT, known)
    assert found.destinations.mrr == pytest.approx(tails, abs=1e-12)
    assert found.sources.mrr == pytest.approx(heads, abs=1e-12)
    assert found.mrr == pytest.approx((tails + heads) / 2, abs=1e-12)
    assert found.destinations.pairs == HELD_OUT.shape[1]
    assert 0 <= found.hits[1] <= found.hits[3] <= found.hits[10] <= 1


def test_equal_scores_have_the_mean_rank() -> None:
    decoder = DistMult(6, RELATIONS).double().requires_grad_(False)
    nn.init.zeros_(decoder.relation)
    rows = torch.ones(ENTITIES, 6, dtype=torch.float64)
    every = {tuple(triple) for triple in TRIPLES.all.T.tolist()}
    tails, heads = triple_ranking_brute_force(decoder, rows, every)
    found = triple_ranking(decoder, rows, rows, HELD_OUT, TRIPLES.all)
    assert found.destinations.mrr == pytest.approx(tails, abs=1e-12)
    assert found.sources.mrr == pytest.approx(heads, abs=1e-12)


def test_known_pairs_do_not_count_and_chunks_change_nothing() -> None:
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
    held_out, known = torch.tensor([[0, 0, 1], [1, 2, 0]]), torch.tensor([[0, 0, 1], [0, 1, 3]])
    nothing = torch.empty(2, 0, dtype=torch.int64)
    for chunk_bytes in (1, 1 << 20):
        found = full_ranking(
            lambda q: scores[q], held_out, nothing, 4, [1, 2], known=known, chunk_bytes=chunk_bytes
        )
        assert found.mrr == pytest.approx((1 + 1 + 1 / 3) / 3)
        assert found.hits == pytest.approx({1: 2 / 3, 2: 2 / 3})
        raw = full_ranking(lambda q: scores[q], held_out, nothing, 4, [1, 2], chunk_bytes=chunk_bytes)
        assert raw.mrr == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)


def test_unfit_triples_are_errors() -> None:
    decoder, rows = made("transe")
    with pytest.raises(ValueError, match=r"give int64 \(3, n\)"):
        triple_ranking(decoder, rows, rows, HELD_OUT[:2])
    with pytest.raises(ValueError, match="relations from 0 to 9, the decoder has 4"):
        triple_ranking(decoder, rows, rows, torch.tensor([[0, 1], [0, 9], [1, 2]]))
    triple, beyond = torch.tensor([[0], [1], [2]]), torch.tensor([[0], [1], [len(rows)]])
    for triples, known, message in (
        (beyond, None, f"destination {len(rows)}: the rows have nodes 0 to {len(rows) - 1}"),
        (beyond.flip(0), None, f"source {len(rows)}: "),
        (torch.tensor([[0], [1], [-2]]), None, "destination -2: "),
        (triple, beyond, f"destination {len(rows)}: "),
        (triple, beyond.flip(0), f"source {len(rows)}: "),
    ):
        with pytest.raises(ValueError, match=f"triples: {message}"):
            triple_ranking(decoder, rows, rows, triples, known)
    with pytest.raises(ValueError, match="give a decoder with relations"):
        triple_ranking(nn.Linear(1, 1), rows, rows, HELD_OUT)
