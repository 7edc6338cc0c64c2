"""Outputs of a sample: disjoint subgraphs, and hops that layers trim.

Columns of a data object are restricted to the sampled nodes and edges.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import trim_to_layer

from khop.pyg import NeighborLoader
from pyg.pyg_cases import BUYS, plain, typed


def ring(num_nodes: int = 400, degree: int = 20) -> Data:
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return Data(x=torch.arange(num_nodes).float().view(-1, 1), edge_index=torch.stack([sources, nodes]))


def test_disjoint_subgraphs_have_a_batch_vector() -> None:
    data = ring(50, 4)
    batch = next(iter(NeighborLoader(data, [-1, -1], torch.tensor([3, 4, 3]), batch_size=3, disjoint=True)))
    assert batch.batch[:3].tolist() == [0, 1, 2]
    assert batch.num_sampled_nodes[0] == 3
    sources, destinations = batch.edge_index
    assert torch.equal(batch.batch[sources], batch.batch[destinations])
    for tree, root in enumerate([3, 4, 3]):
        nodes = batch.n_id[batch.batch == tree]
        assert sorted(nodes.tolist()) == sorted({root, *range(root + 1, root + 9)})
    assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])


def test_disjoint_subgraphs_of_types() -> None:
    loader = NeighborLoader(typed(), [-1, -1], ("item", torch.tensor([2, 7])), batch_size=2, disjoint=True)
    batch = next(iter(loader))
    assert batch["item"].batch[:2].tolist() == [0, 1]
    for edge_type in batch.edge_types:
        sources, destinations = batch[edge_type].edge_index
        trees = batch[edge_type[0]].batch[sources], batch[edge_type[2]].batch[destinations]
        assert torch.equal(*trees)


def connected() -> HeteroData:
    data = typed()
    del data["tag"], data["tag", "on", "item"], data["user", "likes", "tag"]
    return data


def test_trim_to_layer_keeps_what_a_layer_needs() -> None:
    batch = next(iter(NeighborLoader(connected(), [2, 2], "item", batch_size=3)))
    x, edge_index, _ = trim_to_layer(
        1,
        batch.num_sampled_nodes_dict,
        batch.num_sampled_edges_dict,
        batch.x_dict,
        batch.edge_index_dict,
    )
    assert x["item"].shape[0] == sum(batch["item"].num_sampled_nodes[:-1])
    assert edge_index[BUYS].shape[1] == batch[BUYS].num_sampled_edges[0]


def columns_ring(num_nodes: int = 400, degree: int = 20) -> Data:
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return Data(x=torch.arange(num_nodes).float().view(-1, 1), edge_index=torch.stack([sources, nodes]))


def test_what_is_assigned_to_the_loaders_data_counts() -> None:
    """As torch_geometric's own examples do for layer-wise inference."""
    data = plain()
    loader = NeighborLoader(copy.copy(data), [-1], batch_size=10)
    del loader.data.x, loader.data.y
    loader.data.num_nodes = data.num_nodes
    loader.data.n_id = torch.arange(data.num_nodes) * 2
    batch = next(iter(loader))
    assert "x" not in batch
    assert batch.num_nodes == batch.n_id.numel()
    assert batch.n_id[:10].tolist() == list(range(0, 20, 2))


def test_columns_of_every_kind_are_cut() -> None:
    data = plain()
    data.array = np.arange(50).reshape(25, 2)
    data.wide = torch.arange(75).view(3, 25).t()  # rows do not lie one after another
    data.weight = torch.nn.Parameter(torch.ones(25, 2))
    batch = next(iter(NeighborLoader(data, [2], torch.tensor([4, 9]), batch_size=2)))
    assert torch.equal(batch.array, torch.from_numpy(data.array)[batch.n_id])
    assert torch.equal(batch.wide, data.wide[batch.n_id])
    batch.weight.sum().backward()
    assert data.weight.grad is not None
    assert data.weight.grad.nonzero()[:, 0].unique().tolist() == batch.n_id.sort().values.tolist()
    assert batch.name == "plain"


@pytest.mark.parametrize("workers", [0, 2])
def test_columns_on_a_device_are_gathered_there_and_edges_stay(workers: int) -> None:
    """As after `data.to(rank, "x", "y")`."""
    data = columns_ring()
    data.y = torch.arange(400)
    data = data.to("meta", "x", "y")
    for batch in NeighborLoader(data, [5, 3], batch_size=64, num_workers=workers):
        assert batch.x.is_meta
        assert batch.y.is_meta
        assert batch.x.shape == (batch.n_id.numel(), 1)
        assert batch.edge_index.device.type == "cpu"
