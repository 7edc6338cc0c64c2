"""The sampler of khop's loaders: a pure function of inputs and draws, for the settings at hand."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from khop.pyg.keyed import Draws
from khop.pyg.sampler import NeighborSampler


def ring(nodes: int = 12) -> Data:
    ids = torch.arange(nodes)
    ends = [torch.stack([(ids + step) % nodes, ids]) for step in (1, 2, 3)]
    return Data(edge_index=torch.cat(ends, dim=1), num_nodes=nodes)


def test_equal_draws_give_equal_samples_and_other_steps_others() -> None:
    keyed = NeighborSampler(ring(), [2, 2]).keyed()
    inputs = NodeSamplerInput(torch.arange(3), torch.tensor([4, 0, 7]))
    first, again = (keyed.sample_nodes(inputs, Draws(5, step=1)) for _ in range(2))
    assert torch.equal(first.edge, again.edge)
    assert first.node[:3].tolist() == [4, 0, 7]
    others = [keyed.sample_nodes(inputs, Draws(5, step=step)) for step in range(2, 6)]
    assert any(not torch.equal(first.edge, other.edge) for other in others)


def test_a_setting_that_is_assigned_later_is_followed() -> None:
    sampler = NeighborSampler(ring(), [2])
    before = sampler.keyed()
    assert sampler.keyed() is before
    sampler.num_neighbors = [3]
    assert sampler.keyed() is not before
    inputs = NodeSamplerInput(torch.arange(1), torch.tensor([4]))
    assert sampler.keyed().sample_nodes(inputs, Draws(5)).row.numel() == 3
