"""LightGCN is torch_geometric's with the same embeddings, on a graph of two node types."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import LightGCN as TheirLightGCN

from khop.batch import Batch
from khop.inference.node_outputs import layerwise_inference
from khop.models.light_gcn import LightGCN
from khop.sampling.rules.sum import SymmetricSum
from support.small_graphs import SmallGraph, one_type, shop, small_graph

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")


def both_ways() -> SmallGraph:
    """Users and items without columns, and every edge in both directions."""
    graph = small_graph({"user": 20, "item": 15}, {BUYS: 90, BOUGHT: 1}, {}, "item", dtype=torch.float64)
    source, destination = graph.edges[BUYS]
    # Every node has an edge, as torch_geometric leaves nodes without edges out of sums.
    source = torch.cat([source, torch.arange(20), torch.arange(15)])
    destination = torch.cat([destination, torch.arange(20) % 15, torch.arange(15)])
    return graph.with_edges_of({BUYS: (source, destination), BOUGHT: (destination, source)})


def outputs(model: LightGCN, batch: Batch) -> dict[str, torch.Tensor]:
    found = model(batch)
    assert isinstance(found, dict)
    return {node_type: rows.detach() for node_type, rows in found.items()}


def test_over_all_neighbors_it_is_that_of_torch_geometric() -> None:
    graph = both_ways()
    model = LightGCN.for_graph(graph.store, hidden=8, layers=3, target=["user", "item"]).double()
    source, destination = graph.edges[BUYS]
    ends = torch.stack([torch.cat([source, destination + 20]), torch.cat([destination + 20, source])])
    theirs = TheirLightGCN(35, 8, 3).double()
    rows = dict(model.named_parameters())
    tables = [rows[f"encoder.tables.node:{node_type}.weight"] for node_type in ("user", "item")]
    theirs.embedding.weight.data = torch.cat(tables).data
    expected = theirs.get_embedding(ends).detach()
    for node_type, wanted in (("user", expected[:20]), ("item", expected[20:])):
        rule = SymmetricSum()
        batch = graph.batch(torch.arange(len(wanted)), [-1] * 3, node_type, rule=rule)
        torch.testing.assert_close(outputs(model, batch)[node_type], wanted, rtol=0, atol=1e-6)
        exact = layerwise_inference(model, graph.store, graph.features, node_type, rule=rule, chunk_size=4)
        torch.testing.assert_close(exact, wanted, rtol=0, atol=1e-6)


def test_columns_and_embeddings_together_are_one_row_each() -> None:
    graph = shop()
    model = LightGCN.for_graph(graph.store, 8, 2, embedding=4, embedded_types="all")
    assert set(model.encoder.widths.values()) == {8}
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        out = model(graph.batch(torch.arange(10), fanouts, "item", rule=SymmetricSum()))
        assert out.shape == (10, 3)
        out.sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_wrong_sizes_are_named() -> None:
    plain = both_ways()
    with pytest.raises(ValueError, match=r"embedding 4: LightGCN adds the rows .* embedding=8"):
        LightGCN.for_graph(plain.store, 8, target=["user"], embedding=4)
    with pytest.raises(ValueError, match="outputs 5: LightGCN returns rows of width hidden=8"):
        LightGCN.for_graph(plain.store, 8, target=["user"], outputs=5)
    with pytest.raises(ValueError, match=r"node types \['tag'\]: LightGCN needs input rows for each"):
        LightGCN.for_graph(shop().store, 8, 2, embedding=0)
    with pytest.raises(ValueError, match="embedded_types 'all' with embedding 0: give a width"):
        LightGCN.for_graph(one_type().store, 8, 2, embedding=0, embedded_types="all")
