"""Decoders give a score per pair, however the pairs are laid out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from khop.models import decoders
from khop.models.decoders import MLP, DecoderKind, DistMult, Dot, decoder_of

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
