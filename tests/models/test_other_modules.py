"""Any module of a user's over a batch works, and so do torch_geometric's convolutions over blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv

from khop.batch import Batch
from support.small_graphs import one_type, shop


class OfConvolutions(nn.Module):
    """What docs show: torch_geometric's bipartite convolutions, layer by layer."""

    def __init__(self, convolutions: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolutions)

    def forward(self, batch: Batch) -> Tensor:
        x = batch["x"]
        for convolution, block in zip(self.layers, batch.blocks, strict=True):
            x = convolution((x, x[: block.num_dst]), block.edge_index).relu()
        return x[batch.seed_index]

    def full(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for convolution in self.layers:
            x = convolution(x, edge_index).relu()
        return x


def gin(inputs: int, outputs: int) -> GINConv:
    return GINConv(nn.Linear(inputs, outputs))


def gat(inputs: int, outputs: int) -> GATConv:
    return GATConv(inputs, outputs, add_self_loops=False)


@pytest.mark.parametrize("convolution", [SAGEConv, GraphConv, TransformerConv, gin, gat])
def test_convolutions_over_blocks_of_all_neighbors_give_the_full_graph(
    convolution: Callable[[int, int], nn.Module],
) -> None:
    graph = one_type()
    model = OfConvolutions([convolution(7, 16), convolution(16, 4)])
    edge_index = torch.stack(graph.edges["node", "to", "node"])
    seeds = torch.tensor([3, 59, 3, 0, 17])

    output = model(graph.batch(seeds, [-1, -1], "node"))

    expected = model.full(graph.features.columns["node"]["x"], edge_index)[seeds]
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_a_convolution_over_the_subgraph_of_a_square_block() -> None:
    """GCN needs one set of nodes: the last block's edges among all its sources."""
    graph = one_type()
    block = graph.batch(torch.arange(5), [-1], "node").blocks[0]
    rows = GCNConv(7, 3)(torch.randn(block.num_src, 7), block.edge_index)
    assert rows.shape == (block.num_src, 3)


class Typed(nn.Module):
    """A user's own module over a typed batch: it names the types that it wants."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Linear(6, 8)
        self.user = SAGEConv((4, 8), 8)

    def forward(self, batch: Batch) -> Tensor:
        block = batch.blocks[0]
        items = self.item(batch["item", "x"][: block.dst_counts["item"]]).relu()
        edges = block.adjacencies["user", "buys", "item"].edge_index
        return self.user((batch["user", "x"], items), edges)[batch.sample.seed_index["item"]]


def test_a_custom_module_trains_over_typed_batches() -> None:
    batch = shop().batch(torch.arange(12), [3], "item")
    model = Typed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        loss = batch.global_mean(
            nn.functional.cross_entropy(model(batch), batch.seed_column("y"), reduction="none")
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
