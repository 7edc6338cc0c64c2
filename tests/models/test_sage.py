"""A SAGE gives what its formula says, over blocks of any schema, and so do its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv

from khop.batch import Adjacency, Batch
from khop.kernels import segment
from khop.kernels.csc import Csc
from khop.kernels.segment import segment_mean, transpose
from khop.models import layer as layer_sum
from khop.models.layer import LayerOptions, product_of_neighbors
from khop.models.sage import SAGE
from khop.sampling.sampler import Expansion
from support.small_graphs import SmallGraph, one_type, shop, small_graph

Make = Callable[[torch.dtype], SmallGraph]
GRAPHS = [pytest.param(one_type, "node", id="one-type"), pytest.param(shop, "item", id="shop")]
OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"norm": "layer"}, id="norm"),
    pytest.param({"residual": "add"}, id="residual"),
    pytest.param({"norm": "layer", "residual": "add"}, id="norm-residual"),
]


def dense(model: SAGE, graph: SmallGraph, options: Mapping[str, object]) -> Tensor:
    """The full-graph forward pass with one dense matrix per edge type: the formula and nothing else."""
    weights = dict(model.named_parameters())
    counts = graph.store.counts
    h = {t: columns["x"] for t, columns in graph.features.columns.items() if "x" in columns}
    for index in range(model.num_layers):
        layer = f"layers.{index}.weights"
        after = {}
        for t in (t for t in counts if f"{layer}.bias.node:{t}" in weights):
            z = weights[f"{layer}.bias.node:{t}"].expand(counts[t], -1)
            if t in h:
                z = z + h[t] @ weights[f"{layer}.own.node:{t}"].T
            for edge_type, (sources, destinations) in graph.edges.items():
                weight = weights.get(f"{layer}.neighbors.{':'.join(edge_type)}")
                if edge_type[2] == t and weight is not None:
                    matrix = torch.zeros(counts[t], counts[edge_type[0]], dtype=z.dtype)
                    matrix.index_put_((destinations, sources), torch.ones(1, dtype=z.dtype), accumulate=True)
                    matrix = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1)
                    z = z + matrix @ h[edge_type[0]] @ weight.T
            if options.get("norm") == "layer":
                scale, shift = (weights[f"{layer}.norm.node:{t}.{name}"] for name in ("weight", "bias"))
                z = F.layer_norm(z, z.shape[1:], scale, shift)
            z = F.relu(z)
            after[t] = z + h[t] if options.get("residual") and t in h and h[t].shape == z.shape else z
        h = after
    target = model.sizes.target_types[0]
    return F.linear(h[target], weights[f"heads.node:{target}.weight"], weights[f"heads.node:{target}.bias"])


@pytest.mark.parametrize("expansion", Expansion)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("make", "target"), GRAPHS)
def test_a_batch_of_all_neighbors_gives_the_dense_full_graph_forward(
    make: Make, target: str, options: Mapping[str, object], expansion: Expansion
) -> None:
    graph = make(torch.float64)
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, layers=3, **options).double()
    seeds = torch.arange(0, graph.store.num_nodes(target), 7).flip(0)

    output = model(graph.batch(seeds, [-1, -1, -1], target, expansion))

    torch.testing.assert_close(output, dense(model, graph, options)[seeds], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("make", "target"), GRAPHS)
def test_gradients_through_the_kernels_are_those_of_dense_autograd(
    make: Make, target: str, options: Mapping[str, object]
) -> None:
    graph = make(torch.float64)
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, layers=2, **options).double()
    seeds = torch.arange(graph.store.num_nodes(target))
    labels = graph.features.columns[target]["y"]

    F.cross_entropy(dense(model, graph, options), labels).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(graph.batch(seeds, [-1, -1], target)), labels).backward()

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-12)


def test_a_layer_is_what_torch_geometric_calls_sage_convolution() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, layers=1)
    convolution = SAGEConv(7, 8)
    weights = dict(model.named_parameters())
    convolution.lin_l.load_state_dict(
        {
            "weight": weights["layers.0.weights.neighbors.node:to:node"],
            "bias": weights["layers.0.weights.bias.node:node"],
        }
    )
    convolution.lin_r.load_state_dict({"weight": weights["layers.0.weights.own.node:node"]})
    batch = graph.batch(torch.arange(20), [4], "node")
    block = batch.blocks[0]

    ours = model.layer(0, model.encode(batch), block)["node"]
    theirs = convolution((batch["x"], batch["x"][: block.num_dst]), block.edge_index).relu()

    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 200), (200, 3), (16, 16)])
@pytest.mark.parametrize(("num_src", "num_dst"), [(50, 50), (500, 5)])
def test_the_weight_before_or_after_the_mean_gives_the_same(
    inputs: int, outputs: int, num_src: int, num_dst: int
) -> None:
    counts = torch.randint(0, 6, (num_dst,))
    indptr = F.pad(counts.cumsum(0), (1, 0))
    adjacency = Adjacency(indptr, torch.randint(num_src, (int(indptr[-1]),), dtype=torch.int32), num_src)
    h = torch.randn(num_src, inputs, dtype=torch.float64)
    weight = torch.randn(outputs, inputs, dtype=torch.float64)
    matrix = torch.zeros(num_dst, num_src, dtype=torch.float64)
    matrix.index_put_(
        tuple(adjacency.edge_index.flip(0)), torch.ones(1, dtype=torch.float64), accumulate=True
    )

    expected = (matrix / counts.clamp(min=1).unsqueeze(1)) @ h @ weight.T

    torch.testing.assert_close(product_of_neighbors(h, adjacency, weight), expected, rtol=0, atol=1e-11)


def test_every_parameter_has_a_gradient_and_the_inputs_need_none() -> None:
    graph = shop()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, layers=3, norm="layer")
    batch = graph.batch(torch.arange(10), [2, 2, 2], "item")

    model(batch).sum().backward()

    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert not any(column.requires_grad for columns in batch.columns.values() for column in columns.values())


def test_only_what_reaches_the_target_has_weights() -> None:
    model = SAGE.for_graph(shop().store, hidden=8, embedding=0, layers=2)
    last = [name for name, _ in model.layers[1].named_parameters()]
    assert last == [
        "weights.own.node:item",
        "weights.neighbors.tag:on:item",
        "weights.neighbors.user:buys:item",
        "weights.bias.node:item",
    ]
    first = dict(model.layers[0].named_parameters())
    assert "weights.neighbors.tag:on:item" not in first  # a tag has no column


def test_a_seed_that_stands_twice_has_two_rows() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0)
    output = model(graph.batch(torch.tensor([5, 9, 5]), [3, 3], "node"))
    assert output.shape == (3, 3)
    assert torch.equal(output[0], output[2])


def test_layers_give_rows_for_destinations_alone() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0)
    batch = graph.batch(torch.arange(4), [3, 3], "node")
    h = model.encode(batch)
    for index, block in enumerate(batch.blocks):
        h = model.layer(index, h, block)
        assert h["node"].shape == (block.num_dst, 8)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bool, torch.int64])
def test_columns_of_other_dtypes_are_cast_to_the_parameters(dtype: torch.dtype) -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0)
    batch = graph.batch(torch.arange(4), [3, 3], "node")
    stored = (batch["x"] > 0).to(dtype)

    def outputs(column: Tensor) -> Tensor:
        return model(replace(batch, columns={"node": {"x": column}}))

    assert torch.equal(outputs(stored), outputs(stored.float()))
    assert model.double()(replace(batch, columns={"node": {"x": stored}})).dtype == torch.float64


def test_dropout_acts_in_training_alone() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=64, embedding=0, dropout=0.5)
    batch = graph.batch(torch.arange(30), [3, 3], "node")
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_type_names_may_be_those_of_methods_and_hold_any_sign() -> None:
    types = ("items", "a.b", "a:b", "%2E")
    edge_counts = {(t, "type", "items"): 20 for t in types} | {("items", "a.b", t): 20 for t in types[1:]}
    graph = small_graph(dict.fromkeys(types, 12), edge_counts, dict.fromkeys(types, 3), "items")
    model = SAGE.for_graph(graph.store, hidden=4, embedding=0)
    assert model(graph.batch(torch.arange(12), [2, 2], "items")).shape == (12, 3)
    assert len(model.layers[0].weights.neighbors) == len(edge_counts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden 0: must be at least 1"),
        ({"layers": 0}, "layers 0: must be at least 1"),
        ({"dropout": 1.0}, "dropout 1.0: must be at least 0 and below 1"),
        ({"norm": "batch"}, "norm 'batch': must be one of"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SAGE.for_graph(one_type().store, **options)  # type: ignore[arg-type]


def test_a_batch_of_another_depth_is_refused() -> None:
    graph = one_type()
    with pytest.raises(
        ValueError, match="the batch has 1 blocks, but the model has 2 layers: give the sampler one"
    ):
        SAGE.for_graph(graph.store, layers=2)(graph.batch(torch.arange(3), [2], "node"))


def test_options_are_checked_when_made() -> None:
    assert LayerOptions().hidden == 256
    with pytest.raises(ValueError, match="dropout nan"):
        LayerOptions(dropout=float("nan"))


def test_an_empty_batch_has_no_rows() -> None:
    graph = shop()
    batch: Batch = graph.batch(torch.empty(0, dtype=torch.int64), [2, 2], "item")
    output = SAGE.for_graph(graph.store, hidden=4, embedding=0)(batch)
    assert output.shape == (0, 3)
    output.sum().backward()


@pytest.mark.parametrize(
    ("inputs", "outputs", "num_src", "num_dst", "aggregated"),
    [
        (200, 8, 50, 50, 8),  # the weight narrows: first the weight, then the mean of its results
        (8, 200, 50, 50, 8),  # it widens: first the mean
        (64, 64, 500, 5, 64),
        (100, 60, 5000, 10, 100),  # it narrows, but of 5000 sources only 10 rows are wanted
    ],
)
def test_shapes_decide_whether_the_weight_comes_before_the_mean(
    inputs: int, outputs: int, num_src: int, num_dst: int, aggregated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []

    def watched(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        widths.append(x.shape[1])
        return segment_mean(x, indptr, indices)

    monkeypatch.setattr(layer_sum, "segment_mean", watched)
    indptr = torch.arange(num_dst + 1) * 3
    adjacency = Adjacency(indptr, torch.randint(num_src, (3 * num_dst,), dtype=torch.int32), num_src)
    product_of_neighbors(torch.randn(num_src, inputs), adjacency, torch.randn(outputs, inputs))
    assert widths == [aggregated]


def test_the_input_layer_computes_no_gradient_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turning the edges around is the first thing that a gradient does, and only hidden layers' is wanted."""
    turned: list[int] = []

    def watched(indptr: Tensor, indices: Tensor, num_sources: int) -> Csc:
        turned.append(num_sources)
        return transpose(indptr, indices, num_sources)

    monkeypatch.setattr(segment, "transpose", watched)
    graph = one_type(torch.float32)
    batch = graph.batch(torch.arange(3), [2, 2, 2], "node")
    SAGE.for_graph(graph.store, hidden=64, layers=3)(batch).sum().backward()
    assert sorted(turned) == sorted(block.num_src for block in batch.blocks[1:])


def test_a_custom_loop_may_run_under_bfloat16_autocast() -> None:
    graph = shop(torch.float32)
    batch = graph.batch(torch.arange(10), [2, 2], "item")
    model = SAGE.for_graph(graph.store, hidden=8, layers=2, norm="layer", dropout=0.1, embedding=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(batch).float(), torch.zeros(10, dtype=torch.int64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
