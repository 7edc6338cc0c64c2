"""Decoders give a score per pair, however the pairs are laid out.

Decoders with a table of relations: equal to torch_geometric's, to their formulas, and to their grids.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import kge

import khop
from khop.models import decoders
from khop.models.decoders import (
    MLP,
    RELATION_DECODERS,
    ComplEx,
    DecoderKind,
    DistMult,
    Dot,
    RelationDecoder,
    RotatE,
    TransE,
    decoder_of,
)

KINDS: list[DecoderKind] = ["dot", "mlp", "distmult"]


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(kind: DecoderKind) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        decoder = decoder_of(kind, 6).double()
        for parameter in decoder.parameters():
            nn.init.normal_(parameter)
    return decoder


def test_dot_is_the_inner_product() -> None:
    source, destination = rows(5), rows(5, 1)
    torch.testing.assert_close(Dot()(source, destination), torch.linalg.vecdot(source, destination))


def test_distmult_weighs_every_dimension() -> None:
    source, destination, decoder = rows(5), rows(5, 1), DistMult(6).double()
    with torch.no_grad():
        decoder.relation.copy_(torch.arange(6).unsqueeze(0))
    expected = source @ torch.arange(6.0).double().diag() @ destination.T
    torch.testing.assert_close(decoder(source, destination), expected.diag())


def test_mlp_is_two_layers_over_both_rows_side_by_side() -> None:
    decoder = made("mlp")
    assert isinstance(decoder, MLP)
    source, destination = rows(5), rows(5, 1)
    weight = torch.cat([decoder.source, decoder.destination], dim=1)
    hidden = F.linear(torch.cat([source, destination], dim=1), weight, decoder.bias).relu()
    torch.testing.assert_close(decoder(source, destination), decoder.out(hidden).squeeze(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_is_every_source_with_every_destination(
    kind: DecoderKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, sources, destinations = made(kind), rows(7), rows(4, 1)
    expected = torch.stack([decoder(source.expand(4, 6), destinations) for source in sources])
    torch.testing.assert_close(decoder.grid(sources, destinations), expected)  # type: ignore[operator]
    monkeypatch.setattr(decoders, "_GRID_BYTES", 1)
    torch.testing.assert_close(decoder.grid(sources, destinations), expected)  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_is_scored_with_all_its_negatives(kind: DecoderKind) -> None:
    decoder, source, destinations = made(kind), rows(3), rows(12, 1).view(3, 4, 6)
    found = decoder(source.unsqueeze(1), destinations)
    assert found.shape == (3, 4)
    torch.testing.assert_close(found[:, 2], decoder(source, destinations[:, 2]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_pairs_have_no_scores_and_gradients_that_are_zero(kind: DecoderKind) -> None:
    decoder = made(kind)
    source = rows(0).requires_grad_()
    scores = decoder(source, rows(0))
    assert scores.shape == (0,)
    scores.sum().backward()
    for parameter in (source, *decoder.parameters()):
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_another_decoder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decoder 'cosine': must be one of dot, mlp, distmult"):
        decoder_of("cosine", 6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decoder 'dot': width 0 must be at least 1"):
        decoder_of("dot", 0)
    with pytest.raises(ValueError, match="decoder MLP: width 0 must be at least 1"):
        MLP(6, hidden=0)
    with pytest.raises(ValueError, match="decoder DistMult: width -1: must be a whole number"):
        DistMult(-1)


RELATION_DECODERS_KINDS = list(RELATION_DECODERS)
WIDTH, RELATIONS, NODES = 6, 5, 11


def relation_decoders_made(kind: DecoderKind, relations: int = RELATIONS) -> RelationDecoder:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        decoder = decoder_of(kind, WIDTH, relations).double()
    assert isinstance(decoder, RelationDecoder)
    return decoder


def relation_decoders_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_pyg(kind: DecoderKind, decoder: RelationDecoder, nodes: Tensor) -> nn.Module:
    """torch_geometric's model with the same numbers."""
    half = WIDTH // 2
    if kind == "transe":
        model = kge.TransE(NODES, RELATIONS, WIDTH)
    elif kind == "distmult":
        model = kge.DistMult(NODES, RELATIONS, WIDTH)
    elif kind == "complex":
        model = kge.ComplEx(NODES, RELATIONS, half)
    else:
        model = kge.RotatE(NODES, RELATIONS, half, margin=6.0)
    model = model.double()
    relation = decoder.relation.detach()
    is_complex = kind in ("complex", "rotate")
    values = {"node_emb": nodes[:, :half] if is_complex else nodes, "rel_emb": relation}
    if is_complex:
        values["node_emb_im"] = nodes[:, half:]
    if kind == "complex":
        values |= {"rel_emb": relation[:, :half], "rel_emb_im": relation[:, half:]}
    for name, value in values.items():
        getattr(model, name).weight.data.copy_(value)
    return model


@pytest.mark.parametrize("kind", RELATION_DECODERS_KINDS)
def test_scores_and_raw_mrr_are_those_of_torch_geometric(kind: DecoderKind) -> None:
    decoder, nodes = relation_decoders_made(kind), relation_decoders_rows(NODES)
    model = of_pyg(kind, decoder, nodes)
    random = torch.Generator().manual_seed(1)
    head, tail = torch.randint(NODES, (2, 40), generator=random)
    relation = torch.randint(RELATIONS, (40,), generator=random)
    scores = decoder(nodes[head], nodes[tail], relation)
    torch.testing.assert_close(scores, model(head, relation, tail), rtol=1e-10, atol=1e-10)
    _, mrr, hits = model.test(head, relation, tail, batch_size=100, k=3, log=False)  # type: ignore[operator]
    every = decoder.grid(nodes[head], nodes, relation)
    place = 1 + (every > every.gather(1, tail.unsqueeze(1))).sum(1)
    assert float((1 / place).mean()) == pytest.approx(mrr, abs=1e-6)
    assert float((place <= 3).double().mean()) == pytest.approx(hits)


@pytest.mark.parametrize("kind", ["dot", *RELATION_DECODERS_KINDS, "transe of norm 2"])
def test_a_search_finds_the_highest_scores(kind: str) -> None:
    sources, destinations = relation_decoders_rows(7), relation_decoders_rows(9, seed=1)
    relation = (torch.arange(7) % RELATIONS,)
    decoder: Dot | RelationDecoder
    if kind == "dot":
        decoder, relation = Dot(), ()
    else:
        decoder = (
            TransE(WIDTH, RELATIONS, norm=2).double()
            if kind not in RELATION_DECODERS_KINDS
            else relation_decoders_made(kind)
        )  # type: ignore[arg-type]
    search = decoder.search(sources, destinations, *relation)
    found = khop.hard_negatives(search.queries, search.candidates, 9, score=search.score, grid=1 << 14)
    order = decoder.grid(sources, destinations, *relation).argsort(dim=1, descending=True)
    assert torch.equal(found, order)


@pytest.mark.parametrize("kind", RELATION_DECODERS_KINDS)
def test_grids_are_all_pairs(kind: DecoderKind) -> None:
    decoder, sources, destinations = (
        relation_decoders_made(kind),
        relation_decoders_rows(7),
        relation_decoders_rows(4, seed=1),
    )
    relation = torch.arange(7) % RELATIONS
    expected = decoder(sources.unsqueeze(1), destinations, relation.unsqueeze(1))
    torch.testing.assert_close(decoder.grid(sources, destinations, relation), expected)
    of_four = torch.tensor([2, 0, 4, 1])
    expected = decoder(sources, destinations.unsqueeze(1), of_four.unsqueeze(1))
    torch.testing.assert_close(decoder.source_grid(sources, destinations, of_four), expected)


@pytest.mark.parametrize("kind", RELATION_DECODERS_KINDS)
@given(count=st.integers(0, 6), negatives=st.integers(1, 4))
def test_leading_dimensions_are_broadcast(kind: DecoderKind, count: int, negatives: int) -> None:
    decoder, source, others = (
        relation_decoders_made(kind),
        relation_decoders_rows(count),
        relation_decoders_rows(count, negatives, seed=1),
    )
    relation = torch.arange(count) % RELATIONS
    scores = decoder(source.unsqueeze(1), others, relation.unsqueeze(1))
    assert scores.shape == (count, negatives)
    for each in range(negatives):
        torch.testing.assert_close(scores[:, each], decoder(source, others[:, each], relation))


@pytest.mark.core(2)
@pytest.mark.parametrize("kind", RELATION_DECODERS_KINDS)
def test_gradients_are_those_of_finite_differences(kind: DecoderKind) -> None:
    decoder, relation = relation_decoders_made(kind), torch.tensor([0, 2, 2])
    both = [
        relation_decoders_rows(3).requires_grad_(),
        relation_decoders_rows(3, seed=1).requires_grad_(),
        decoder.relation,
    ]
    assert torch.autograd.gradcheck(lambda s, d, _: decoder(s, d, relation), both)


@pytest.mark.parametrize("kind", RELATION_DECODERS_KINDS)
def test_tables_begin_at_random_and_one_relation_needs_no_name(kind: DecoderKind) -> None:
    decoder = relation_decoders_made(kind)
    assert decoder.relation.unique().numel() == decoder.relation.numel()
    one = relation_decoders_made(kind, relations=1)
    torch.testing.assert_close(
        one(relation_decoders_rows(3), relation_decoders_rows(3, seed=1)),
        one(relation_decoders_rows(3), relation_decoders_rows(3, seed=1), torch.zeros(3, dtype=torch.int64)),
    )
    with pytest.raises(ValueError, match="has 5 relations: give the relation of each pair"):
        decoder(relation_decoders_rows(3), relation_decoders_rows(3, seed=1))


def test_unfit_sizes_are_errors() -> None:
    for make in (ComplEx, RotatE):
        with pytest.raises(ValueError, match="width 5 must be even"):
            make(5)
    with pytest.raises(ValueError, match="norm 3 must be 1 or 2"):
        TransE(4, norm=3)
    with pytest.raises(ValueError, match="margin nan must be finite"):
        RotatE(4, margin=float("nan"))
    with pytest.raises(ValueError, match="relations"):
        DistMult(4, 0)
    with pytest.raises(ValueError, match="decoder 'dot': has no relations, but the links have 3"):
        decoder_of("dot", 4, 3)
