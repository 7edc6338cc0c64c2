"""Lazy modules get their sizes from batches, and from a seed the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import khop
from khop.batch import Batch
from support.small_graphs import one_type

GRAPH = one_type()


class Lazy(nn.Module):
    """A layer over the input columns, and one that no batch reaches."""

    def __init__(self, *, reached: bool = True) -> None:
        super().__init__()
        self.first = nn.LazyLinear(4)
        self.second = nn.LazyLinear(2) if not reached else nn.Identity()

    def forward(self, batch: Batch) -> torch.Tensor:
        out: torch.Tensor = self.first(batch.columns["node"]["x"])
        return out


def loader() -> khop.Loader:
    graph = khop.Graph(GRAPH.store, GRAPH.features)
    sampler = khop.NeighborSampler(graph, [2])
    return khop.Loader(sampler, {"node": torch.arange(60)}, 8, columns=["x"], shuffle=True)


def test_equal_seeds_give_equal_sizes_and_weights() -> None:
    models = [Lazy(), Lazy(), Lazy()]
    state = torch.get_rng_state()
    for model, seed in zip(models, (3, 3, 4), strict=True):
        khop.initialize(model.train(), loader(), seed=seed)
        assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    first, same, other = (model.first.weight for model in models)
    assert first.shape == (4, 7)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_modules_that_no_batch_reaches_are_named() -> None:
    with pytest.raises(ValueError, match=r"the first 10 batches do not initialize second\.weight"):
        khop.initialize(Lazy(reached=False), loader())
