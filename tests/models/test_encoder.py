"""Inputs of a model: columns, linear layers of them, or embeddings by node id.

A model's sizes come from the graph's types, and what does not fit together is named.

The row of nodes without an embedding: which nodes a step drops, and what trains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

import khop
from khop import models
from khop.batch import Batch
from khop.kernels.activations import dropout_key
from khop.models.encoder import Encoder, ModelSizes, UnknownRow, renumbered
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.sage import SAGE
from khop.schema import ColumnSpec, NodeType, Schema
from khop.training.steps import seeded
from support.small_graphs import shop

GRAPH = shop()

TYPES = ("user", "item", "tag")


SIZES = ModelSizes(
    inputs={"user": 4, "item": 6},
    edge_types=(),
    targets="item",
    outputs=3,
    embedding=3,
    embedded={"tag": 5},
)


def test_columns_come_as_they_are_and_embeddings_by_id() -> None:
    batch = GRAPH.batch(torch.tensor([0, 3, 5]), [3, 2], "item")
    encoder = Encoder(SIZES, TYPES, "none", 8)
    out = encoder(batch)
    assert encoder.widths == {"user": 4, "item": 6, "tag": 3}
    for node_type in ("user", "item"):
        assert torch.equal(out[node_type], batch.columns[node_type]["x"])
    (table,) = encoder.tables.values()
    assert torch.equal(out["tag"], table.weight[batch.sample.nodes["tag"]])


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_nodes_of_a_partitioned_graph_begin_with_the_rows_that_they_had_before(
    tmp_path: Path, update: EmbeddingUpdate
) -> None:
    ends, nodes = torch.arange(12), {"node": khop.NodeTable(12)}
    edges = {("node", "to", "node"): khop.EdgeTable(ends, ends.flip(0))}
    graph = khop.open_graph(khop.write_graph(tmp_path / "g", nodes, edges))
    khop.partition_graph(tmp_path / "g", tmp_path / "p", 3, method="random")
    parts = khop.open_graph(tmp_path / "p")
    originals = parts.original_ids("node")
    assert originals is not None
    assert not torch.equal(originals, torch.arange(12))
    tables = []
    for each in (graph, parts):
        sizes = ModelSizes.of(each, ["node"], outputs=2, embedding=4, embedding_update=update, unknown=0.5)
        encoder = seeded(3, lambda sizes=sizes: Encoder(sizes, ["node"], "none", 4))
        tables.append(encoder.tables["node:node"].weight)
    assert torch.equal(tables[1], tables[0][originals])


def test_linear_makes_every_type_as_wide() -> None:
    batch = GRAPH.batch(torch.tensor([0, 3, 5]), [3, 2], "item")
    encoder = Encoder(SIZES, TYPES, "linear", 8)
    out = encoder(batch)
    assert {t: rows.shape for t, rows in out.items()} == {
        t: (ids.numel(), 8) for t, ids in batch.sample.nodes.items()
    }
    assert encoder.widths == dict.fromkeys(TYPES, 8)


def test_without_embeddings_a_type_without_the_column_has_no_input() -> None:
    batch = GRAPH.batch(torch.tensor([0]), [2], "item")
    assert "tag" not in Encoder(replace(SIZES, embedded={}, embedding=0), TYPES, "none", 8)(batch)


def test_a_column_that_the_batch_lacks_is_named_with_the_remedy() -> None:
    batch = GRAPH.batch(torch.tensor([0]), [2], "item")
    with pytest.raises(ValueError, match=r"column 'z' of 'user': .* give the loader columns=\['z'\]"):
        Encoder(replace(SIZES, column="z"), TYPES, "none", 8)(batch)
    with pytest.raises(ValueError, match="encoder 'mlp': must be one of"):
        Encoder(SIZES, TYPES, "mlp", 8)  # type: ignore[arg-type]


RENUMBERED_SIZES = ModelSizes(
    {"item": 3}, (("user", "buys", "item"),), "item", 2, embedding=4, embedded={"user": 6}
)


def model(update: str) -> SAGE:
    return SAGE(replace(RENUMBERED_SIZES, embedding_update=update), 8, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_rows_are_read_by_new_numbers_inside_the_block(update: str) -> None:
    made = model(update)
    (before,) = made.encoder.tables.values()
    with renumbered(made, {"user": torch.tensor([1, 4])}, {"user": 6, "item": 9}):
        (inside,) = made.encoder.tables.values()
        torch.testing.assert_close(inside(torch.tensor([1, 0])), before.weight[[4, 1]], rtol=0, atol=0)
    assert list(made.encoder.tables.values()) == [before]


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_a_new_node_has_the_row_of_unknown_nodes(update: str) -> None:
    made = SAGE(replace(RENUMBERED_SIZES, embedding_update=update, unknown=0.5), 8, 1)  # type: ignore[arg-type]
    (before,), (unknown,) = made.encoder.tables.values(), made.encoder.unknown.values()
    torch.nn.init.normal_(unknown.weight)
    with renumbered(made, {"user": torch.tensor([1, 6, 4, 9])}, {"user": 6, "item": 9}):
        (inside,) = made.encoder.tables.values()
        found = inside(torch.arange(4))
    expected = torch.stack([before.weight[1], unknown.weight, before.weight[4], unknown.weight])
    assert torch.equal(found, expected)
    assert list(made.encoder.tables.values()) == [before]


def test_a_type_without_nodes_in_training_has_that_row_alone() -> None:
    made = SAGE(replace(RENUMBERED_SIZES, embedded={"user": 0}, unknown=0.5), 8, 1)
    with renumbered(made, {"user": torch.tensor([0, 1])}, {"user": 0, "item": 9}):
        (inside,) = made.encoder.tables.values()
        assert torch.equal(inside(torch.arange(2)), torch.zeros(2, 4))


def test_a_node_after_those_of_training_is_refused() -> None:
    nodes = {"user": torch.tensor([1, 6])}
    with (
        pytest.raises(ValueError, match=r"node type 'user': .* set model.unknown, such as 0.05, and train"),
        renumbered(model("dense"), nodes, {"user": 6, "item": 9}),
    ):
        pass


def test_a_custom_model_with_embeddings_by_node_is_refused() -> None:
    custom = nn.ModuleDict({"rows": nn.Embedding(6, 2)})
    with pytest.raises(ValueError, match=r"ModuleDict.rows: has 6 rows"), renumbered(custom, {}, {"user": 6}):
        pass
    with renumbered(nn.ModuleDict({"words": nn.Embedding(7, 2)}), {}, {"user": 6}):
        pass


X = ColumnSpec("float32", (3,))
LABEL = ColumnSpec("int64", (), num_classes=4)


@dataclass(frozen=True)
class Types:
    """A graph of which only types and counts are known."""

    schema: Schema

    def num_nodes(self, node_type: NodeType) -> int:
        return 10 + self.schema.node_types.index(node_type)

    def original_ids(self, node_type: NodeType) -> None:
        """The nodes were never renumbered."""


TWO = Schema(("a", "b"), (), columns={"a": {"x": X}, "b": {"x": X, "kind": LABEL}})
BARE = Schema(("a", "b"), (), columns={"b": {"x": X}})


def test_the_target_is_the_one_node_type_with_labels() -> None:
    assert ModelSizes.of(Types(TWO)) == ModelSizes({"a": 3, "b": 3}, (), "b", 4)
    both = Types(replace(TWO, columns={"a": {"x": X, "kind": LABEL}, "b": {"x": X, "kind": LABEL}}))
    assert ModelSizes.of(both, target="a").targets == "a"
    with pytest.raises(ValueError, match=r"node type with labels: name one of \['a', 'b'\]"):
        ModelSizes.of(both)
    with pytest.raises(ValueError, match=r"node type with labels is 'a': must be one of \['b'\]"):
        ModelSizes.of(Types(TWO), target="a")
    none = Types(replace(TWO, columns={"a": {"x": X}, "b": {"x": X}}))
    with pytest.raises(
        ValueError, match=r"node type with labels: the graph has none, 'a' included; give the"
    ):
        ModelSizes.of(none, target="a")


def test_the_label_is_the_one_column_with_classes() -> None:
    columns = {"x": X, "kind": LABEL, "age": ColumnSpec("int64", (), num_classes=9)}
    graph = Types(Schema(("node",), (), columns={"node": columns}))
    assert ModelSizes.of(graph, label="age").outputs == 9
    with pytest.raises(ValueError, match=r"label column of 'node': name one of \['kind', 'age'\]"):
        ModelSizes.of(graph)
    with pytest.raises(ValueError, match="label column of 'node' is 'x': must be one of"):
        ModelSizes.of(graph, label="x")


def test_a_column_that_no_type_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"column 'z': no node type has it; there are \{'a': \['x'\]"):
        ModelSizes.of(Types(TWO), column="z")


def test_scalar_and_matrix_columns_are_rows_of_numbers() -> None:
    for shape, width in (((), 1), ((2, 3), 6)):
        schema = Schema(("node",), (), columns={"node": {"x": ColumnSpec("float32", shape), "y": LABEL}})
        assert ModelSizes.of(Types(schema)).inputs == {"node": width}


def test_several_targets_need_no_labels_but_a_width() -> None:
    sizes = ModelSizes.of(Types(BARE), ["a", "b"], outputs=16)
    assert (sizes.targets, sizes.target_types, sizes.outputs) == (("a", "b"), ("a", "b"), 16)
    assert ModelSizes.of(Types(BARE), ("b",), outputs=16).targets == ("b",)


def test_types_without_the_column_may_have_embeddings() -> None:
    sizes = ModelSizes.of(Types(BARE), ["b"], outputs=2, embedding=5)
    assert (sizes.inputs, sizes.embedded, sizes.embedding) == ({"b": 3}, {"a": 10}, 5)
    for none in (0, None):
        assert ModelSizes.of(Types(BARE), ["b"], outputs=2, embedding=none).embedded == {}


def test_a_target_that_is_named_may_have_outputs_of_any_width() -> None:
    sizes = ModelSizes.of(Types(TWO), "b", outputs=1)
    assert (sizes.targets, sizes.outputs) == ("b", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": ["a"]}, r"outputs None: an encoder of \['a'\] needs the width of its output rows"),
        ({"target": ["a"], "outputs": 0}, r"outputs 0: an encoder of \['a'\] needs the width"),
        ({"target": ["a", "c"], "outputs": 2}, r"target \['a', 'c'\]: must be different node types of"),
        ({"target": ["a", "a"], "outputs": 2}, r"target \['a', 'a'\]: must be different node types"),
        ({"target": [], "outputs": 2}, r"target \[\]: must be different node types"),
        ({"target": ["b"], "label": "kind", "outputs": 2}, "label 'kind': an encoder of .* has no label"),
        ({"outputs": 2}, "outputs 2: a classifier has one output per class of its label; for other"),
        ({"target": "b", "label": "kind", "outputs": 2}, "label 'kind': an encoder of .* without outputs"),
        ({"embedding": -1}, "embedding -1: must be a width of at least 1, or 0 for none"),
    ],
)
def test_arguments_that_do_not_fit_together_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSizes.of(Types(TWO), **arguments)  # type: ignore[arg-type]


UNKNOWN_ROW_SIZES = ModelSizes(
    {"user": 4, "item": 6}, (), "item", 3, embedding=3, embedded={"tag": 5, "user": 30}, unknown=0.5
)
USER, TAG = "node:user", "node:tag"


def batch_of(epoch: int = 0, step: int = 0) -> Batch:
    return replace(GRAPH.batch(torch.tensor([0, 3, 5]), [3, 2], "item"), epoch=epoch, step=step)


def test_a_step_drops_nodes_at_the_rate_and_every_step_drops_others() -> None:
    row, ids = UnknownRow(2, 0.25), torch.arange(100_000)
    steps = [row.dropped(ids, batch_of(*at)) for at in ((0, 0), (0, 1), (1, 0))]
    for dropped in steps:
        assert abs(dropped.double().mean() - 0.25) < 0.005
    assert abs((steps[0] & steps[1]).double().mean() - 0.0625) < 0.004  # independent of each other
    assert abs((steps[0] & steps[2]).double().mean() - 0.0625) < 0.004


def test_the_nodes_depend_on_their_ids_alone_and_not_on_their_places() -> None:
    row, ids = UnknownRow(2, 0.5), torch.randperm(1000)
    whole = row.dropped(ids, batch_of(2, 7))
    assert torch.equal(row.dropped(ids[400:], batch_of(2, 7)), whole[400:])
    torch.manual_seed(1)
    assert torch.equal(row.dropped(ids, batch_of(2, 7)), whole)


def test_renumbered_nodes_are_dropped_by_their_numbers_before() -> None:
    numbers = torch.randperm(1000)
    torch.manual_seed(1)
    before = UnknownRow(2, 0.5)
    torch.manual_seed(1)
    after = UnknownRow(2, 0.5, numbers).double()
    dropped = before.dropped(torch.arange(1000), batch_of(2, 7))
    assert torch.equal(after.dropped(torch.arange(1000), batch_of(2, 7)), dropped[numbers])
    assert after.state_dict().keys() == before.state_dict().keys()


def test_another_seed_or_type_drops_other_nodes_and_the_weights_keep_the_key() -> None:
    ids = torch.arange(1000)
    torch.manual_seed(3)
    first, other = UnknownRow(2, 0.5), UnknownRow(2, 0.5)
    torch.manual_seed(3)
    again = UnknownRow(2, 0.5)
    dropped = first.dropped(ids, batch_of())
    assert torch.equal(again.dropped(ids, batch_of()), dropped)
    assert 400 < int((other.dropped(ids, batch_of()) == dropped).sum()) < 600
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.to(torch.float64).dropped(ids, batch_of()), dropped)


def test_a_recorded_step_takes_its_key_from_the_device() -> None:
    row, ids, at = UnknownRow(2, 0.5), torch.arange(1000), torch.tensor([5])
    with dropout_key(at):
        first = row.dropped(ids, batch_of())
        at.fill_(6)
        assert not torch.equal(row.dropped(ids, batch_of()), first)
        at.fill_(5)
        assert torch.equal(row.dropped(ids, batch_of()), first)


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_dropped_nodes_train_the_row_and_leave_their_embeddings(update: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(replace(UNKNOWN_ROW_SIZES, embedding_update=update), TYPES, "none", 8)  # type: ignore[arg-type]
    batch = batch_of(1, 1)
    ids, row, table = batch.sample.nodes["user"], encoder.unknown[USER], encoder.tables[USER]
    torch.nn.init.normal_(row.weight)
    dropped = row.dropped(ids, batch)
    count = int(dropped.sum())
    assert 0 < count < ids.numel()
    out = encoder(batch)["user"][:, 4:]  # the column comes first
    assert torch.equal(out[dropped], row.weight.expand(count, -1))
    assert torch.equal(out[~dropped], table.weight[ids[~dropped]])
    out.sum().backward()
    assert torch.equal(row.weight.grad, torch.full((3,), float(count)))
    read, gradients = (torch.arange(30), table.weight.grad) if update == "dense" else table.take_gradients()
    at = torch.searchsorted(read, ids)
    assert torch.equal(gradients[at[dropped]], torch.zeros(count, 3))
    assert torch.equal(gradients[at[~dropped]], torch.ones(ids.numel() - count, 3))


def test_evaluation_drops_nothing() -> None:
    encoder = Encoder(UNKNOWN_ROW_SIZES, TYPES, "none", 8).eval()
    batch = batch_of()
    assert torch.equal(encoder(batch)["tag"], encoder.tables[TAG].weight[batch.sample.nodes["tag"]])


def test_a_rate_that_is_no_probability_is_refused() -> None:
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=r"unknown .*: must be a probability above 0 and below 1"):
            UnknownRow(2, rate)
    with pytest.raises(ValueError, match=r"unknown 1\.5: must be a probability below 1"):
        ModelSizes.of(GRAPH.store, "item", outputs=2, embedding=4, unknown=1.5)


# Models over sparse columns compute and learn the same as over the dense columns, with the same weights.


WORDS = 60
RULES: dict[str, khop.Rule] = {"GCN": khop.SymmetricSum(), "GIN": khop.Sum(), "LightGCN": khop.SymmetricSum()}
MODELS: dict[str, Callable[[khop.Graph], nn.Module]] = {
    "SAGE": lambda graph: models.SAGE.for_graph(graph, 8, 2, target="item"),
    "SAGE linear": lambda graph: models.SAGE.for_graph(graph, 8, 2, target="item", encoder="linear"),
    "SAGE as wide as words": lambda graph: models.SAGE.for_graph(
        graph, WORDS, 2, target="item", residual="add"
    ),
    "SAGE with embeddings": lambda graph: models.SAGE.for_graph(
        graph, 8, 2, target="item", encoder="linear", embedding=4, embedded_types="all"
    ),
    "GCN": lambda graph: models.GCN.for_graph(graph, 8, 2, target="item"),
    "GAT": lambda graph: models.GAT.for_graph(graph, 8, 2, target="item", heads=2),
    "GATv2": lambda graph: models.GAT.for_graph(graph, 8, 2, target="item", heads=2, attention="gatv2"),
    "GIN": lambda graph: models.GIN.for_graph(graph, 8, 2, target="item"),
    "HGT": lambda graph: models.HGT.for_graph(graph, 8, 2, target="item", heads=2),
    "RGCN": lambda graph: models.RGCN.for_graph(graph, 8, 2, target="item"),
    "LightGCN": lambda graph: models.LightGCN.for_graph(graph, 8, 2, target="item"),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> list[khop.Graph]:
    """The same graph with sparse and with dense words."""
    return [
        khop.open_graph(write(tmp_path_factory.mktemp("graph") / kind, kind)) for kind in ("sparse", "dense")
    ]


def write(path: Path, kind: str) -> Path:
    """Write items and users with words, and edges between them in both directions."""
    generator = np.random.default_rng(5)
    nodes = {}
    for node_type, count in (("item", 40), ("user", 25)):
        words = sparse.random(count, WORDS, 0.08, format="csr", random_state=count, dtype=np.float32)
        label = {"y": torch.arange(count) % 3} if node_type == "item" else {}
        column = words if kind == "sparse" else words.toarray()
        nodes[node_type] = khop.NodeTable(
            count, {"x": column, **label}, num_classes={"y": 3} if label else {}
        )
    users, items = (torch.from_numpy(generator.integers(0, count, 200)) for count in (25, 40))
    edges = {
        ("user", "likes", "item"): khop.EdgeTable(users, items, reverse_of=("item", "liked", "user")),
        ("item", "liked", "user"): khop.EdgeTable(items, users),
    }
    return khop.write_graph(path, nodes, edges)


def outputs(graph: khop.Graph, model: nn.Module, rule: khop.Rule) -> tuple[Tensor, list[Tensor | None]]:
    """Compute outputs of a sampled batch, and the gradient of every parameter."""
    sampler = khop.NeighborSampler(graph, [3, 3], rule=rule)
    batch = khop.Loader(sampler, {"item": torch.arange(40)}, 40, columns=["x"], seed=1).batch(0, 0)
    out = model(batch)
    (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return out.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.core(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_and_has_the_same_gradients(name: str, graphs: list[khop.Graph]) -> None:
    rule = RULES.get(name, khop.Uniform())
    made = [MODELS[name](graph).double() for graph in graphs]
    made[1].load_state_dict(made[0].state_dict())
    (out, gradients), (expected, of_dense) = (
        outputs(graph, model, rule) for graph, model in zip(graphs, made, strict=True)
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)
    for ours, theirs in zip(gradients, of_dense, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-6)
    exact = [
        khop.layerwise_inference(model, graph.topology, graph.features, "item", rule=rule, chunk_size=7)
        for graph, model in zip(graphs, made, strict=True)
    ]
    torch.testing.assert_close(exact[0], exact[1], rtol=0, atol=1e-9)


class Mean(nn.Module):
    """A linear layer over the sum of own rows and neighbors' mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, x: Tensor, adjacency: khop.Adjacency) -> Tensor:
        """Multiply first, so that sparse rows stay sparse."""
        from khop.kernels.segment import segment_mean

        rows: Tensor = self.linear(x)
        return rows[: adjacency.num_dst] + segment_mean(rows, adjacency.indptr, adjacency.indices)


def test_layers_of_users_take_the_rows(tmp_path: Path) -> None:
    found = []
    for kind in ("sparse", "dense"):
        matrix = sparse.random(9, WORDS, 0.08, format="csr", random_state=2, dtype=np.float32)
        nodes = khop.NodeTable(9, {"x": matrix if kind == "sparse" else matrix.toarray()})
        ids = torch.arange(9)
        edges = {("node", "to", "node"): khop.EdgeTable(ids, (ids + 1) % 9)}
        graph = khop.open_graph(khop.write_graph(tmp_path / kind, {"node": nodes}, edges))
        torch.manual_seed(0)
        width = graph.schema.column("node", "x").sparse_width
        model = models.Sequential([Mean(WORDS), Mean(4)], sparse_width=width)
        batch = khop.Loader(khop.NeighborSampler(graph, [-1, -1]), ids, 9, columns=["x"]).batch(0, 0)
        found.append(model(batch).detach())
        if kind == "sparse":
            with pytest.raises(ValueError, match=r"rows of indices and values: give the width"):
                models.Sequential([Mean(WORDS), Mean(4)])(batch)
    torch.testing.assert_close(found[0], found[1])


def test_embeddings_beside_sparse_rows_need_the_linear_encoder(graphs: list[khop.Graph]) -> None:
    with pytest.raises(ValueError, match=r"column 'x' of 'item' is sparse, .*encoder=\"linear\""):
        models.SAGE.for_graph(graphs[0], 8, 2, target="item", embedding=4, embedded_types="all")
