"""R-GAT is HeteroConv of GATConv, as MLPerf's reference computes it: whole, sampled and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATConv, HeteroConv

from khop.batch import Batch, Block
from khop.inference.node_outputs import layerwise_inference
from khop.models.rgat import RGAT
from khop.schema import EdgeType, NodeType
from support.small_graphs import SmallGraph, small_graph

CITES, WROTE = ("paper", "cites", "paper"), ("author", "wrote", "paper")
BY, AT = ("paper", "by", "author"), ("author", "at", "institute")
HAS, NEAR = ("institute", "has", "author"), ("fos", "near", "paper")
EDGES = {CITES: 90, WROTE: 60, BY: 60, AT: 30, HAS: 30, NEAR: 40}
COUNTS = {"paper": 30, "author": 20, "institute": 5, "fos": 6}


def igb_like() -> SmallGraph:
    """Types as those of IGB; nothing points at fos, so that it has no rows after the first layer."""
    return small_graph(COUNTS, EDGES, dict.fromkeys(COUNTS, 6), "paper", dtype=torch.float64)


class Reference(nn.Module):
    """The layers of MLPerf's reference, with the weights of a khop model."""

    def __init__(self, model: RGAT, heads: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for layer in model.layers:
            made = {}
            for t in EDGES:
                name = ":".join(t)
                if name not in layer.attention:
                    continue
                ours = dict(layer.attention[name].named_parameters())
                hidden, inputs = ours["values"].shape
                conv = GATConv(inputs, hidden // heads, heads, add_self_loops=False).double()
                state = {"att_src": ours["source"][None], "att_dst": ours["destination"][None]}
                conv.load_state_dict(state | {"lin.weight": ours["values"], "bias": ours["bias"]})
                made[t] = conv
            self.convs.append(HeteroConv(made))

    def forward(self, x: Mapping[NodeType, Tensor], edges: list[Mapping[EdgeType, Tensor]]) -> Tensor:
        for number, (conv, of_layer) in enumerate(zip(self.convs, edges, strict=True)):
            there = {t: e for t, e in of_layer.items() if t[0] in x and t[2] in x}
            x = conv(dict(x), there)
            if number < len(self.convs) - 1:
                x = {t: leaky_relu(rows) for t, rows in x.items()}
        return x["paper"]


def rgat(graph: SmallGraph, layers: int = 3) -> RGAT:
    torch.manual_seed(1)
    return RGAT.for_graph(graph.store, hidden=8, layers=layers, dropout=0, label="y").double()


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_outputs_on_a_whole_graph_are_those_of_torch_geometric() -> None:
    graph = igb_like()
    model = rgat(graph)
    x = {t: columns["x"] for t, columns in graph.features.columns.items()}
    ends = {t: torch.stack(of_type) for t, of_type in graph.edges.items()}
    wanted = model.head("paper", Reference(model, 4)(x, [ends] * 3))
    batch = graph.batch(torch.arange(30), [-1, -1, -1], "paper")
    torch.testing.assert_close(model(batch), wanted, rtol=0, atol=1e-9)
    exact = layerwise_inference(model, graph.store, graph.features, "paper", chunk_size=7)
    torch.testing.assert_close(exact, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fanout", [2, 0])
def test_outputs_and_gradients_of_a_sample_are_those_of_torch_geometric(fanout: int) -> None:
    graph = igb_like()
    model = rgat(graph, layers=2)
    batch = graph.batch(torch.arange(0, 30, 3), [3, fanout], "paper")

    def theirs(rows: Mapping[NodeType, Tensor]) -> Tensor:
        x: Mapping[NodeType, Tensor] = rows
        for number, block in enumerate(batch.blocks):
            x = reference_layer(model, number, x, block)
        return model.head("paper", x["paper"][batch.seed_index])

    rows = {t: batch.columns[t]["x"].clone().requires_grad_() for t in batch.columns}
    again = Batch(batch.sample, batch.seed_nodes, {t: {"x": x} for t, x in rows.items()}, {}, 0, 0, 10)
    torch.testing.assert_close(model(again), theirs(rows), rtol=0, atol=1e-9)
    given = [*rows.values(), *model.parameters()]
    found, wanted = (torch.autograd.grad(out.sin().sum(), given) for out in (model(again), theirs(rows)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def reference_layer(
    model: RGAT, number: int, x: Mapping[NodeType, Tensor], block: Block
) -> dict[NodeType, Tensor]:
    """GATConv's equations, one edge type and head at a time, over a block."""
    out = {}
    for node_type in {t[2] for t in EDGES}:
        total = x["paper"].new_zeros(block.dst_counts[node_type], 8)
        for t in EDGES:
            name = ":".join(t)
            if t[2] != node_type or name not in model.layers[number].attention:
                continue
            own = model.layers[number].attention[name]
            total = total + own.bias
            source, destination = block.adjacencies[t].edge_index
            values = (x[t[0]] @ own.values.T).view(-1, 4, 2)
            rows = (x[t[2]][: total.shape[0]] @ own.values.T).view(-1, 4, 2)
            scores = (values * own.source).sum(-1)[source] + (rows * own.destination).sum(-1)[destination]
            grown = leaky_relu(scores, 0.2).exp()
            sums = grown.new_zeros(total.shape[0], 4).index_add(0, destination, grown)
            weighted = values[source] * (grown / sums[destination])[..., None]
            total = total.index_add(0, destination, weighted.flatten(1))
        out[node_type] = total if number == len(model.layers) - 1 else leaky_relu(total)
    return out


def test_what_does_not_fit_is_refused_with_the_remedy() -> None:
    uneven = small_graph(COUNTS, EDGES, {**dict.fromkeys(COUNTS, 6), "fos": 4}, "paper")
    with pytest.raises(ValueError, match=r"4 and 6 columns.*set encoder to \"linear\""):
        RGAT.for_graph(uneven.store, hidden=8, label="y")
    assert RGAT.for_graph(uneven.store, hidden=8, label="y", encoder="linear").num_layers == 3
    with pytest.raises(ValueError, match="heads 3: must divide hidden, 8"):
        RGAT.for_graph(uneven.store, hidden=8, heads=3, label="y", encoder="linear")
