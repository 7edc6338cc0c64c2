"""Models over typed graphs: several targets, embeddings, types and edge types that a batch lacks.

Which models expose their layers, and which types their layers need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv

import khop
import khop.models
from khop import models
from khop.batch import Batch
from khop.draw import DrawKey
from khop.graph.store import CscGraph
from khop.inference.node_outputs import layerwise_inference
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from khop.models.stack import Layered, Stack, destination_types
from khop.sampling.sampler import Fanout, NeighborSampler
from khop.sampling.seeds import Seeds
from khop.schema import Schema
from support.small_graphs import SmallGraph, one_type, shop

MODELS: Mapping[str, Callable[[SmallGraph], Stack]] = {
    "sage": lambda graph: SAGE.for_graph(
        graph.store, hidden=8, layers=3, target=["item", "user"], outputs=4, norm="layer", embedding=5
    ),
    "sage-linear": lambda graph: SAGE.for_graph(
        graph.store, 8, 3, ("item", "user"), residual="add", outputs=4, embedding=5, encoder="linear"
    ),
    "rgcn": lambda graph: RGCN.for_graph(
        graph.store, 8, 3, ["item", "user"], norm="layer", residual="add", outputs=4, embedding=5
    ),
    "rgcn-bases": lambda graph: RGCN.for_graph(
        graph.store, 8, 3, ["item", "user"], outputs=4, embedding=0, bases=2
    ),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
COLUMNS = ColumnChoice({"user": ("x",), "item": ("x",)})


def batch_of(graph: SmallGraph, seeds: Mapping[str, Tensor], fanouts: Sequence[Fanout]) -> Batch:
    positions = {t: torch.arange(ids.numel()) for t, ids in seeds.items()}
    sample = NeighborSampler(graph.store, fanouts).sample(Seeds(seeds, positions), DrawKey(1))
    sample, columns, _ = gather_columns(graph.features, COLUMNS, sample)
    return Batch(sample, seeds, columns, {}, 0, 0, sum(ids.numel() for ids in seeds.values()))


def without_gradient(model: Stack, batch: Batch) -> list[str]:
    """The parameters that have none after a backward pass through all of the model's rows."""
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(torch.stack([rows.sum() for rows in model(batch).values()]).sum())
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


@every_model
def test_several_targets_give_a_mapping_with_a_row_per_seed(make: Callable[[SmallGraph], Stack]) -> None:
    graph, seeds = shop(), {"user": torch.tensor([3, 1, 3]), "item": torch.tensor([8, 9])}
    output = make(graph)(batch_of(graph, seeds, [-1, -1, -1]))
    assert {t: tuple(rows.shape) for t, rows in output.items()} == {"item": (2, 4), "user": (3, 4)}
    assert torch.equal(output["user"][0], output["user"][2])


@pytest.mark.core(1)
@every_model
def test_all_neighbors_give_what_exact_inference_gives(make: Callable[[SmallGraph], Stack]) -> None:
    graph = shop(torch.float64)
    model = make(graph).double()
    seeds = {"user": torch.arange(30), "item": torch.arange(40)}
    output = model(batch_of(graph, seeds, [-1, -1, -1]))
    for node_type, rows in output.items():
        exact = layerwise_inference(model, graph.store, graph.features, node_type, chunk_size=7)
        torch.testing.assert_close(exact, rows.detach(), rtol=0, atol=1e-12)


@pytest.mark.core(2)
@every_model
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param({"user": torch.arange(4)}, id="no item among the seeds"),
        pytest.param({"item": torch.empty(0, dtype=torch.int64)}, id="no seed at all"),
    ],
)
def test_seeds_may_lack_a_target(make: Callable[[SmallGraph], Stack], seeds: Mapping[str, Tensor]) -> None:
    graph = shop()
    model, batch = make(graph), batch_of(graph, seeds, [2, 2, 2])
    assert model(batch)["item"].shape == (0, 4)
    assert without_gradient(model, batch) == []


@every_model
def test_types_without_nodes_have_gradients_of_zero(make: Callable[[SmallGraph], Stack]) -> None:
    graph = shop()
    model = make(graph)
    batch = batch_of(graph, {"item": torch.arange(5)}, [dict.fromkeys(graph.edges, 0)] * 3)
    assert {t: ids.numel() for t, ids in batch.sample.nodes.items()} == {"user": 0, "item": 5, "tag": 0}
    assert without_gradient(model, batch) == []
    about_others = [p.grad for name, p in model.named_parameters() if "user" in name or "tag" in name]
    assert about_others
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in about_others)


@every_model
def test_edge_types_that_a_hop_skips_have_gradients_of_zero(make: Callable[[SmallGraph], Stack]) -> None:
    graph = shop()
    model = make(graph)
    no_tags = {("tag", "on", "item"): 0, "*": 2}
    batch = batch_of(graph, {"item": torch.arange(5), "user": torch.arange(5)}, [no_tags, 2, no_tags])
    assert without_gradient(model, batch) == []


@every_model
def test_blocks_may_lack_an_edge_type(make: Callable[[SmallGraph], Stack]) -> None:
    graph = shop()
    model, batch = make(graph), batch_of(graph, {"item": torch.arange(5)}, [2, 2, 2])
    lacking = [replace(b, adjacencies=dict(list(b.adjacencies.items())[:2])) for b in batch.blocks]
    batch = replace(batch, sample=replace(batch.sample, blocks=tuple(lacking)))
    assert without_gradient(model, batch) == []


def test_only_what_reaches_a_target_is_encoded() -> None:
    graph = shop()
    one_layer = SAGE.for_graph(graph.store, hidden=8, layers=1, target=["tag"], outputs=2, embedding=3)
    assert dict(one_layer.encoder.widths) == {"tag": 3, "item": 6}
    assert dict(one_layer.input_columns) == {"item": ("x",)}


def test_a_graph_whose_columns_do_not_reach_the_target_is_refused() -> None:
    schema = Schema(("user", "item"), (), columns=shop().store.schema.columns)
    graph = CscGraph(schema, {"user": 3, "item": 4}, {})
    with pytest.raises(ValueError, match=r"column 'y': none of the node types that reach .* \['user'\]"):
        SAGE.for_graph(graph, target=["user"], column="y", outputs=2)


def test_an_edge_type_whose_node_type_has_no_column_is_named_with_the_ways_out() -> None:
    with pytest.raises(
        ValueError,
        match=r"edge type \('tag', 'on', 'item'\): its node type 'tag' has no column 'x'; give embedding=64",
    ):
        SAGE.for_graph(shop().store)


def test_embeddings_may_have_sparse_gradients() -> None:
    graph = shop()
    model = MODELS["sage"](graph)
    for table in model.encoder.tables.values():
        table.sparse = True  # type: ignore[assignment]
    batch = batch_of(graph, {"item": torch.arange(40)}, [-1, -1, -1])
    assert without_gradient(model, batch) == []
    gradient = model.encoder.tables["node:tag"].weight.grad
    assert isinstance(gradient, Tensor)
    assert gradient.is_sparse


def test_a_column_that_the_loader_was_not_asked_for_is_named() -> None:
    graph = shop()
    batch = graph.batch(torch.arange(3), [2, 2, 2], "item")
    bare = Batch(batch.sample, batch.seed_nodes, {"user": batch.columns["user"]}, {}, 0, 0, 3)
    with pytest.raises(ValueError, match=r"column 'x' of 'item'.*give the loader columns=\['x'\]"):
        MODELS["sage"](graph)(bare)


def test_a_rescaled_model_gives_outputs_in_the_unit_of_labels_in_batches_and_layer_by_layer() -> None:
    graph, seeds = shop(), torch.tensor([2, 0])
    torch.manual_seed(3)
    model = SAGE.for_graph(graph.store, 8, 2, "item", outputs=2, embedding=5).double()
    batch = batch_of(graph, {"item": seeds}, [-1, -1])
    plain = model(batch)
    model.rescale((5.0, -1.0), (2.0, 10.0))
    expected = plain * torch.tensor([2.0, 10.0]) + torch.tensor([5.0, -1.0])
    torch.testing.assert_close(model.double()(batch), expected)
    exact = layerwise_inference(model, graph.store, graph.features, "item", nodes=seeds)
    torch.testing.assert_close(exact, expected)
    assert "unit.mean" in model.state_dict()
    with pytest.raises(ValueError, match="must be finite, and of the same length"):
        model.rescale((0.0,), (float("inf"),))


def test_a_model_names_the_rule_by_which_a_sampler_draws_for_it() -> None:
    expected = {
        "SAGE": khop.Uniform(),
        "GAT": khop.Uniform(),
        "GCN": khop.SymmetricSum(),
        "GIN": khop.Sum(),
        "LightGCN": khop.SymmetricSum(),
    }
    assert {name: getattr(khop.models, name).rule for name in expected} == expected


def test_the_rule_of_a_predictor_is_that_of_its_encoder() -> None:
    encoder = khop.models.GCN.for_graph(one_type().store, 4, 1, target=["node"], outputs=4)
    of_links = khop.models.LinkPredictor.of(encoder, [("node", "to", "node")], "dot", 4)
    of_edges = khop.models.EdgePredictor.of(encoder, [("node", "to", "node")], 4, 2)
    other = khop.models.LinkPredictor.of(torch.nn.Identity(), [("node", "to", "node")], "dot", 4)
    assert of_links.rule == of_edges.rule == khop.SymmetricSum()
    assert other.rule == khop.Uniform()


EDGE_TYPES = (
    ("user", "buys", "item"),
    ("item", "has", "tag"),
    ("shop", "employs", "user"),
    ("tag", "on", "item"),
)


def test_models_are_imported_by_name_when_they_are_used() -> None:
    assert dir(models) == sorted(models.__all__)
    assert models.SAGE is SAGE
    with pytest.raises(AttributeError, match=r"module 'khop\.models' has no attribute 'SAEG'"):
        models.SAEG  # noqa: B018


def test_a_sage_exposes_its_layers_and_a_plain_module_does_not() -> None:
    assert isinstance(SAGE.for_graph(one_type().store, hidden=4), Layered)
    assert not isinstance(nn.Linear(2, 2), Layered)


def test_types_are_those_that_reach_the_target_in_the_layers_that_are_left() -> None:
    assert destination_types(EDGE_TYPES, ("item",), 3) == [
        ("item", "user", "tag", "shop"),
        ("item", "user", "tag"),
        ("item",),
    ]


def test_without_layers_or_edges_there_is_little_to_reach() -> None:
    assert destination_types(EDGE_TYPES, ("item",), 0) == []
    assert destination_types((), ("item",), 2) == [("item",), ("item",)]


# Any module of a user's over a batch works, and so do torch_geometric's convolutions over blocks.


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


@pytest.mark.core(2)
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
