"""What a layer adds up: own rows and means of in-neighbors with weights, for many destinations or few."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Adjacency
from khop.kernels.segment import segment_mean_reference
from khop.kernels.segment_weighted import segment_weighted_sum_reference
from khop.models.layer_sum import LayerSum

DESTINATIONS, SOURCES = 200, 250


def edges_to(share: float, seed: int = 3) -> Adjacency:
    """Into so large a share of the destinations."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (DESTINATIONS,), generator=generator)
    counts *= torch.rand(DESTINATIONS, generator=generator) < share
    indptr = F.pad(counts.cumsum(0), (1, 0))
    indices = torch.randint(SOURCES, (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    return Adjacency(indptr, indices, SOURCES)


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("shares", [(), (0.0,), (0.05,), (0.5, 1.0), (1.0, 1.0), (1.0, 0.0, 0.1)])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 20), (20, 3)])
@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_weights", [False, True])
def test_the_sum_is_that_of_its_terms_however_many_destinations_have_edges(
    shares: tuple[float, ...], inputs: int, outputs: int, has_own: bool, activation: str, has_weights: bool
) -> None:
    h, bias, own = numbers(SOURCES, inputs), numbers(outputs), numbers(outputs, inputs)
    weights = [numbers(outputs, inputs) for _ in shares]
    adjacencies = [edges_to(share, seed) for seed, share in enumerate(shares)]
    if has_weights:
        adjacencies = [replace(of, weight=numbers(of.indices.numel()).detach().float()) for of in adjacencies]

    sums = LayerSum(DESTINATIONS, bias)
    expected = bias.repeat(DESTINATIONS, 1)
    if has_own:
        sums.add_own(h, own)
        expected = expected + h[:DESTINATIONS] @ own.T
    for adjacency, weight in zip(adjacencies, weights, strict=True):
        sums.add_neighbors(h, adjacency, weight)
        operands = (adjacency.indptr, adjacency.indices)
        if adjacency.weight is None:
            expected = expected + segment_mean_reference(h, *operands) @ weight.T
        else:
            expected = expected + segment_weighted_sum_reference(h, adjacency.weight, *operands) @ weight.T
    out = sums.total("relu" if activation == "relu" else "none")
    expected = expected.relu() if activation == "relu" else expected

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    pull = numbers(DESTINATIONS, outputs).detach()
    operands = (bias, *weights, *((h, own) if has_own else ()))
    ours = torch.autograd.grad((out * pull).sum(), operands)
    theirs = torch.autograd.grad((expected * pull).sum(), operands)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_a_hop_that_was_skipped_gives_its_weight_a_gradient_of_zeros() -> None:
    h, bias, weight = numbers(SOURCES, 4), numbers(3), numbers(3, 4)
    sums = LayerSum(DESTINATIONS, bias)
    sums.add_neighbors(h, None, weight)
    sums.total("relu").sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
