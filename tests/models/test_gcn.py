"""A GCN is torch_geometric's with the same weights; it needs neighbors with weights."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GCNConv

from khop.inference.node_outputs import layerwise_inference
from khop.models.gcn import GCN
from khop.sampling.rules.sum import SymmetricSum
from support.small_graphs import one_type, shop

EXACT = {"rtol": 0, "atol": 1e-6}  # weights of edges are float32


def test_over_all_neighbors_it_is_that_of_torch_geometric() -> None:
    graph = one_type(torch.float64)
    model = GCN.for_graph(graph.store, hidden=8, layers=2).double()
    ends = torch.stack(graph.edges["node", "to", "node"])
    # Every node has degree 1 at least, where torch_geometric leaves nodes without in-edges out of sums.
    ends = torch.cat([ends, torch.arange(60).repeat(2, 1)], dim=1)
    given = dict(model.named_parameters())
    h = graph.features.columns["node"]["x"]
    with_loops = graph.with_edges(ends)
    for index in range(2):
        weight = given[f"layers.{index}.weights.neighbors.node:to:node"]
        own, bias = (given[f"layers.{index}.weights.{name}.node:node"] for name in ("own", "bias"))
        convolution = GCNConv(*reversed(weight.shape), add_self_loops=False, bias=False).double()
        convolution.lin.weight.data = weight.data
        h = (convolution(h, ends) + h @ own.T + bias).relu()
    expected = model.head("node", h).detach()
    found = model(with_loops.batch(torch.arange(60), [-1, -1], "node", rule=SymmetricSum())).detach()
    torch.testing.assert_close(found, expected, **EXACT)
    exact = layerwise_inference(
        model, with_loops.store, graph.features, "node", rule=SymmetricSum(), chunk_size=7
    )
    torch.testing.assert_close(exact, expected, **EXACT)


def test_exact_inference_of_several_types_is_the_full_graph() -> None:
    graph = shop(torch.float64)
    model = GCN.for_graph(graph.store, 8, 2, embedding=0, norm="layer", residual="add").double()
    every = model(graph.batch(torch.arange(40), [-1, -1], "item", rule=SymmetricSum())).detach()
    rule = SymmetricSum()
    exact = layerwise_inference(model, graph.store, graph.features, "item", rule=rule, chunk_size=7)
    torch.testing.assert_close(exact, every, rtol=0, atol=1e-10)


def test_every_parameter_has_a_gradient() -> None:
    graph = shop()
    model = GCN.for_graph(graph.store, 8, 2, embedding=5, embedded_types="all", norm="layer")
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        model(graph.batch(torch.arange(10), fanouts, "item", rule=SymmetricSum())).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_neighbors_without_weights_are_refused_with_the_remedy() -> None:
    graph = one_type()
    model = GCN.for_graph(graph.store, hidden=8)
    with pytest.raises(ValueError, match=r"no weights: GCN sums neighbors; .* rule=khop.SymmetricSum\(\)"):
        model(graph.batch(torch.arange(4), [2, 2], "node"))
