"""The parts of a layer: means of in-neighbours times a weight, for many destinations or few."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from khop.batch import Adjacency
from khop.models.layer import add_mean_of_neighbors, mean_of_neighbors


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 20), (20, 3)])
def test_destinations_without_edges_change_nothing_however_many_they_are(
    share: float, inputs: int, outputs: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(1, 5, (200,), generator=generator)
    counts *= torch.rand(200, generator=generator) < share
    indptr = F.pad(counts.cumsum(0), (1, 0))
    indices = torch.randint(50, (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    adjacency = Adjacency(indptr, indices, 50)
    h = torch.randn(50, inputs, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(outputs, inputs, dtype=torch.float64, requires_grad=True)
    start = torch.randn(200, outputs, dtype=torch.float64)

    out = start.clone()
    add_mean_of_neighbors(out, h, adjacency, weight)
    expected = start + mean_of_neighbors(h, adjacency, weight)

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    pull = torch.randn_like(start)
    ours = torch.autograd.grad((out * pull).sum(), (h, weight))
    theirs = torch.autograd.grad((expected * pull).sum(), (h, weight))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)
