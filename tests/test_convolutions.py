"""torch_geometric's convolutions over blocks compute what they compute over the whole graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop import Batch, Expansion, Graph, Loader, NeighborSampler, Schema
from khop.graph.features.table import FeatureTable
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.schema import ColumnSpec
from support.typed_shop import BUYS, shop

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # torch_geometric compiles classes when it is imported
    from torch_geometric.nn import GATv2Conv, SAGEConv

EDGE = ("node", "to", "node")
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
WIDTH = 3


class TwoLayers(torch.nn.Module):
    """The model of usage: layers of torch_geometric over the blocks of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv((WIDTH, WIDTH), 4), SAGEConv((4, 4), 2)])

    def forward(self, batch: Batch) -> Tensor:
        x = batch["x"]
        for convolution, block in zip(self.layers, batch.blocks, strict=True):
            x = convolution((x, x[: block.num_dst]), block.edge_index).relu()
        return x[batch.seed_index]

    def over_all(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for convolution in self.layers:
            x = convolution(x, edge_index).relu()
        return x


@EXPANSIONS
@given(
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=6),
)
def test_two_layers_over_blocks_of_all_neighbors_are_exact(
    expansion: Expansion, edges: list[tuple[int, int]], seeds: list[int]
) -> None:
    edge_index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()
    x = torch.arange(30, dtype=torch.float32).sin().view(10, WIDTH)
    topology = csc_graph_from_edges({"node": 10}, {EDGE: (edge_index[0], edge_index[1])})
    schema = Schema(("node",), (EDGE,), columns={"node": {"x": ColumnSpec("float32", (WIDTH,))}})
    graph = Graph(CscGraph(schema, topology.counts, topology.edges), FeatureTable({"node": {"x": x}}))
    sampler = NeighborSampler(graph, [-1, -1], expansion=expansion)
    batch = Loader(sampler, torch.tensor(seeds), len(seeds), columns=["x"]).batch(0, 0)
    model = TwoLayers()
    with torch.no_grad():
        assert torch.allclose(model(batch), model.over_all(x, edge_index)[torch.tensor(seeds)], atol=1e-5)


def test_a_bipartite_convolution_over_a_typed_block_is_the_dense_computation() -> None:
    graph = shop()
    sampler = NeighborSampler(graph, [{BUYS: -1, "*": 0}])
    batch = Loader(sampler, {"item": torch.tensor([3, 29, 3])}, 3, columns=["x"]).batch(0, 0)
    convolution = SAGEConv((2, 1), 3)
    items = batch["item", "x"]
    with torch.no_grad():
        block = batch.blocks[0]
        ours = convolution((batch["user", "x"], items), block.adjacencies[BUYS].edge_index)
        expected = dense(convolution, graph)[torch.tensor([3, 29, 3])]
        assert torch.allclose(ours[batch.seed_index], expected, atol=1e-5)


def dense(convolution: SAGEConv, graph: Graph) -> Tensor:
    """The same layer by a matrix over all users and items."""
    assert isinstance(graph.topology, CscGraph)
    assert isinstance(graph.features, FeatureTable)
    csc, columns = graph.topology.edges[BUYS], graph.features.columns
    counts = torch.zeros(30, 40)
    rows = torch.arange(30).repeat_interleave(csc.indptr.diff())
    counts.index_put_((rows, csc.indices.long()), torch.ones(rows.numel()), accumulate=True)
    mean = counts @ columns["user"]["x"] / counts.sum(dim=1, keepdim=True)
    return convolution.lin_l(mean) + convolution.lin_r(columns["item"]["x"])


@EXPANSIONS
def test_edge_columns_go_along_with_the_edges(expansion: Expansion) -> None:
    """An attention that reads a column of its edges does not mind their order."""
    sampler = NeighborSampler(shop(), [{BUYS: 3, "*": 0}], expansion=expansion, edge_ids=True)
    loader = Loader(
        sampler, {"item": torch.arange(9)}, 9, columns={"user": ["x"], "item": ["x"], BUYS: ["amount"]}
    )
    batch = loader.batch(0, 0)
    adjacency = batch.blocks[0].adjacencies[BUYS]
    weights = adjacency.columns["amount"][:, None].float()
    convolution = GATv2Conv((2, 1), 3, edge_dim=1, add_self_loops=False)
    x = (batch["user", "x"], batch["item", "x"])
    with torch.no_grad():
        ours = convolution(x, adjacency.edge_index, weights)
        turned = convolution(x, adjacency.edge_index.flip(1), weights.flip(0))
    assert ours.shape == (9, 3)
    assert torch.allclose(ours, turned, atol=1e-5)
