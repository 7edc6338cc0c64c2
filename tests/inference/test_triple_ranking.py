"""Filtered ranking of both ends equals brute force, triple by triple."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from khop import full_ranking, triple_ranking
from khop.models.decoders import RELATION_DECODERS, DecoderKind
from khop.models.relation_decoders import DistMult, RelationDecoder
from support.knowledge import ENTITIES, RELATIONS, Triples

TRIPLES = Triples.drawn()
HELD_OUT, TRAINED = TRIPLES.all[:, ::4], torch.cat([TRIPLES.all[:, n::4] for n in (1, 2, 3)], dim=1)


def made(kind: DecoderKind) -> tuple[RelationDecoder, Tensor]:
    torch.manual_seed(2)
    decoder = RELATION_DECODERS[kind](6, RELATIONS).double()
    return decoder.requires_grad_(False), torch.randn(ENTITIES, 6, dtype=torch.float64)


def reciprocal(scores: list[float], own: int, left_out: set[int]) -> float:
    above = sum(s > scores[own] for node, s in enumerate(scores) if node not in left_out)
    tied = sum(s == scores[own] for node, s in enumerate(scores) if node not in left_out and node != own)
    return sum(1 / place for place in range(above + 1, above + tied + 2)) / (tied + 1)


def brute_force(decoder: RelationDecoder, rows: Tensor, known: set[tuple[int, ...]]) -> tuple[float, float]:
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
    tails, heads = brute_force(decoder, rows, every if setting == "filtered" else set())
    known = TRAINED if setting == "filtered" else None
    if known is not None:
        known = torch.cat([known, HELD_OUT], dim=1)
    found = triple_ranking(decoder, rows, rows, HELD_OUT, known)
    assert found.destinations.mrr == pytest.approx(tails, abs=1e-12)
    assert found.sources.mrr == pytest.approx(heads, abs=1e-12)
    assert found.mrr == pytest.approx((tails + heads) / 2, abs=1e-12)
    assert found.destinations.pairs == HELD_OUT.shape[1]
    assert 0 <= found.hits[1] <= found.hits[3] <= found.hits[10] <= 1


def test_equal_scores_have_the_mean_over_all_orders() -> None:
    decoder = DistMult(6, RELATIONS).double().requires_grad_(False)
    nn.init.zeros_(decoder.relation)
    rows = torch.ones(ENTITIES, 6, dtype=torch.float64)
    every = {tuple(triple) for triple in TRIPLES.all.T.tolist()}
    tails, heads = brute_force(decoder, rows, every)
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
    with pytest.raises(ValueError, match="give a decoder of relations"):
        triple_ranking(nn.Linear(1, 1), rows, rows, HELD_OUT)
