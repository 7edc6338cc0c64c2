"""A row of layers with `forward(x, adjacency)` is trained on batches and inferred layer by layer, exactly."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from khop import Adjacency, Expansion, Graph, Loader, NeighborSampler, layerwise_inference
from khop.graph.features.table import FeatureTable
from khop.graph.store import csc_graph_from_edges
from khop.kernels.segment import segment_mean
from khop.models import Layered, Sequential
from khop.schema import EdgeType

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATv2Conv, SAGEConv

EDGE = ("node", "to", "node")
NODES, WIDTH = 40, 3


class Convolution(nn.Module):
    """A convolution of torch_geometric with its norm, activation and residual."""

    def __init__(self, convolution: nn.Module, width: int, last: bool = False) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = nn.LayerNorm(width)
        self.last = last

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return self.after(self.convolution((x, x[: adjacency.num_dst]), adjacency.edge_index))

    def after(self, x: Tensor) -> Tensor:
        return x if self.last else self.norm(x).relu()


def graph_of(edge_index: Tensor) -> Graph:
    x = torch.arange(NODES * WIDTH, dtype=torch.float32).sin().view(NODES, WIDTH)
    return in_memory({"node": x}, {EDGE: edge_index})


def in_memory(x: Mapping[str, Tensor], edges: Mapping[EdgeType, Tensor]) -> Graph:
    counts = {t: rows.shape[0] for t, rows in x.items()}
    columns: dict[str | EdgeType, dict[str, Tensor]] = {t: {"x": rows} for t, rows in x.items()}
    ends = {t: (edge_index[0], edge_index[1]) for t, edge_index in edges.items()}
    topology = csc_graph_from_edges(counts, ends, columns=columns)
    return Graph(topology, FeatureTable(topology.columns))


@pytest.fixture
def edge_index() -> Tensor:
    return torch.randint(NODES, (2, 150), generator=torch.Generator().manual_seed(1))


def model_of() -> tuple[Sequential, list[Convolution]]:
    torch.manual_seed(3)
    layers = [
        Convolution(SAGEConv(WIDTH, 8), 8),
        Convolution(GATv2Conv(8, 4, heads=2), 8),
        Convolution(SAGEConv(8, 2), 2, last=True),
    ]
    return Sequential(layers), layers


def test_layer_by_layer_is_the_full_graph_computation(edge_index: Tensor) -> None:
    graph = graph_of(edge_index)
    model, layers = model_of()
    assert isinstance(model, Layered)
    with torch.no_grad():
        x = graph.columns["node"]["x"]
        for layer in layers:
            x = layer.after(layer.convolution(x, edge_index))
    rows = layerwise_inference(model, graph, graph.features, "node", chunk_size=7)
    assert torch.allclose(rows, x, atol=1e-5)


@pytest.mark.parametrize("expansion", list(Expansion))
def test_a_batch_of_all_neighbors_gives_the_same(edge_index: Tensor, expansion: Expansion) -> None:
    graph = graph_of(edge_index)
    model, _ = model_of()
    seeds = torch.tensor([5, 9, 5, 31])
    sampler = NeighborSampler(graph, [-1, -1, -1], expansion=expansion)
    batch = Loader(sampler, seeds, 4, columns=["x"]).batch(0, 0)
    with torch.no_grad():
        exact = layerwise_inference(model, graph, graph.features, "node", nodes=seeds)
        assert torch.allclose(model(batch), exact, atol=1e-5)


class Shared(nn.Module):
    """A mean over all edge types into a node type, which any node type is given."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Mapping[str, Tensor], adjacency: Mapping[EdgeType, Adjacency]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for (source, _, destination), edges in adjacency.items():
            found = segment_mean(self.linear(x[source]), edges.indptr, edges.indices)
            out[destination] = out[destination] + found if destination in out else found
        return out


def test_of_typed_graphs_layers_take_and_give_mappings() -> None:
    generator = torch.Generator().manual_seed(2)
    x = {t: torch.randn(count, 4, generator=generator) for t, count in (("user", 12), ("item", 20))}
    users, items = (torch.randint(count, (60,), generator=generator) for count in (12, 20))
    buys, by = torch.stack([users, items]), torch.stack([items, users])
    graph = in_memory(x, {("user", "buys", "item"): buys, ("item", "by", "user"): by})
    model = Sequential([Shared(4, 5), Shared(5, 3)])
    nodes = torch.arange(12)
    exact = layerwise_inference(model, graph, graph.features, "item", nodes=nodes, chunk_size=5)
    batch = Loader(NeighborSampler(graph, [-1, -1]), {"item": nodes}, 12, columns=["x"]).batch(0, 0)
    with torch.no_grad():
        assert torch.allclose(model(batch), exact, atol=1e-5)


def test_whole_numbers_come_in_the_parameters_dtype(edge_index: Tensor) -> None:
    words = torch.arange(NODES * WIDTH, dtype=torch.uint8).view(NODES, WIDTH)
    graph = in_memory({"node": words}, {EDGE: edge_index})
    model = Sequential([Convolution(SAGEConv(WIDTH, 2), 2)]).double()
    assert layerwise_inference(model, graph, graph.features, "node").dtype == torch.float64


class Whole(nn.Module):
    """Gives a row per source."""

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return x


def test_what_does_not_fit_is_named(edge_index: Tensor) -> None:
    graph = graph_of(edge_index)
    loader = Loader(NeighborSampler(graph, [2]), torch.arange(4), 4, columns=["x"])
    with pytest.raises(ValueError, match=r"no layers, give a list of modules"):
        Sequential([])
    with pytest.raises(ValueError, match=r"layer 0 is a function: give a torch.nn.Module"):
        Sequential([lambda x, adjacency: x])  # type: ignore[list-item]
    with pytest.raises(
        ValueError, match=r"layer 0 returns \d+ rows for 4 destinations: call the convolution"
    ):
        Sequential([Whole()])(loader.batch(0, 0))
    with pytest.raises(ValueError, match="the batch has 1 blocks, but the model has 2 layers"):
        Sequential([Whole(), Whole()])(loader.batch(0, 0))
    with pytest.raises(ValueError, match=r"column 'z': not in this batch, which has .*'x'.*columns=\['z'\]"):
        Sequential([Whole()], column="z")(loader.batch(0, 0))
