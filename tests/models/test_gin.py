"""A GIN is torch_geometric's with the same weights, and sums over all neighbors in expectation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv

from khop.batch import Batch
from khop.draw import DrawKey
from khop.inference.node_outputs import layerwise_inference
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.models.gin import GIN
from khop.sampling.rules.sum import Sum
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import Seeds
from support.small_graphs import SmallGraph, one_type, shop


def batch_of(graph: SmallGraph, target: str, fanouts: list[int]) -> Batch:
    """A batch of all nodes of a type, with weights that sum."""
    nodes = torch.arange(graph.store.num_nodes(target))
    seeds = Seeds({target: nodes}, {target: nodes})
    choice = ColumnChoice({t: ("x",) for t, of in graph.features.columns.items() if "x" in of}, {}, {})
    sample = NeighborSampler(graph.store, fanouts, rule=Sum()).sample(seeds, DrawKey(3))
    sample, columns, of_seeds = gather_columns(graph.features, choice, sample)
    return Batch(sample, seeds.nodes, columns, of_seeds, 0, 0, nodes.numel())


def test_over_all_neighbors_it_is_that_of_torch_geometric() -> None:
    graph = one_type(torch.float64)
    model = GIN.for_graph(graph.store, hidden=8, layers=2).double()
    for layer in model.layers:
        layer.get_parameter("eps.node:node").data.fill_(0.25)
    ends = torch.stack(graph.edges["node", "to", "node"])
    h: Tensor = model.encoder.linear["node:node"](graph.features.columns["node"]["x"])
    for layer in model.layers:
        mlp: nn.Module = layer.get_submodule("mlp.node:node")
        h = GINConv(mlp, eps=0.25)(h, ends).relu()
    expected = model.head("node", h).detach()
    found = model(batch_of(graph, "node", [-1, -1]))
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=1e-10)
    exact = layerwise_inference(model, graph.store, graph.features, "node", rule=Sum(), chunk_size=7)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-10)


def test_exact_inference_of_several_types_is_the_full_graph() -> None:
    graph = shop(torch.float64)
    model = GIN.for_graph(graph.store, 8, 2, embedding=0, norm="layer", residual="add").double()
    every = model(batch_of(graph, "item", [-1, -1])).detach()
    exact = layerwise_inference(model, graph.store, graph.features, "item", rule=Sum(), chunk_size=7)
    torch.testing.assert_close(exact, every, rtol=0, atol=1e-10)


def test_every_parameter_has_a_gradient() -> None:
    graph = shop()
    model = GIN.for_graph(graph.store, 8, 2, embedding=0, norm="layer")
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        model(batch_of(graph, "item", fanouts)).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_neighbors_without_weights_are_refused_with_the_remedy() -> None:
    graph = one_type()
    model = GIN.for_graph(graph.store, hidden=8)
    with pytest.raises(ValueError, match=r"no weights: GIN sums neighbors; draw them by rule=khop.Sum\(\)"):
        model(graph.batch(torch.arange(4), [2, 2], "node"))
