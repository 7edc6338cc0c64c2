"""A layer in training and evaluation: dropout, residual rows, and options that are refused.

What a layer adds up: own rows and means of in-neighbors with weights, for many destinations or few.

Names of parameters: different types have different names, and torch's containers take each.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv

from khop.batch import Adjacency, Batch, Block
from khop.draw import DrawKey
from khop.inference.node_outputs import layerwise_inference
from khop.kernels.segment import segment_mean_reference
from khop.kernels.segment_weighted import segment_weighted_sum_reference
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.models.encoder import ModelSizes
from khop.models.gcn import GCN
from khop.models.gin import GIN
from khop.models.layer import Layer, LayerOptions, LayerSum, linear_weight, parameter_name
from khop.models.sage import SAGE
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import Seeds
from support.small_graphs import SmallGraph, one_type, shop

TO = ("node", "to", "node")


def layer_and_input(width: int) -> tuple[Layer, dict[str, torch.Tensor], Block]:
    torch.manual_seed(3)
    batch = one_type().batch(torch.arange(20), [4], "node")
    model = SAGE(ModelSizes({"node": 7}, (TO,), "node", 3), hidden=width, layers=1)
    (layer,) = model.layers
    assert isinstance(layer, Layer)
    return layer, {"node": batch.columns["node"]["x"]}, batch.blocks[0]


def test_residual_adds_the_rows_themselves_where_widths_are_equal() -> None:
    layer, h, block = layer_and_input(7)
    plain = layer.eval()(h, block)["node"]
    layer.options = replace(layer.options, residual="add")
    torch.testing.assert_close(layer(h, block)["node"], plain + h["node"][: len(plain)])
    wide, h, block = layer_and_input(5)
    plain = wide.eval()(h, block)["node"]
    wide.options = replace(wide.options, residual="add")
    assert torch.equal(wide(h, block)["node"], plain)


def test_dropout_is_for_training_alone() -> None:
    layer, h, block = layer_and_input(7)
    layer.options = replace(layer.options, dropout=0.5)
    kept = layer.eval()(h, block)["node"]
    dropped = layer.train()(h, block)["node"]
    is_out = dropped == 0
    assert bool((is_out & (kept > 0)).any())
    torch.testing.assert_close(dropped[~is_out], 2 * kept[~is_out])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"hidden": 0}, "hidden 0: must be at least 1"),
        ({"hidden": 2.0}, "hidden 2.0: must be a whole number"),
        ({"dropout": 1.0}, "dropout 1.0: must be at least 0 and below 1"),
        ({"norm": "batch"}, "norm 'batch': must be one of"),
        ({"residual": True}, "residual True: must be one of"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LayerOptions(**options)  # type: ignore[arg-type]


def test_weights_begin_as_torchs() -> None:
    torch.manual_seed(1)
    weight = linear_weight(5, 3)
    torch.manual_seed(1)
    assert torch.equal(weight, torch.nn.Linear(3, 5, bias=False).weight)


DESTINATIONS, SOURCES = 200, 250


def edges_to(share: float, seed: int = 3) -> Adjacency:
    """Into so large a share of the destinations."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (DESTINATIONS,), generator=generator)
    counts *= torch.rand(DESTINATIONS, generator=generator) < share
    indptr = F.pad(counts.cumsum(0), (1, 0))
    indices = torch.randint(SOURCES, (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    return Adjacency(indptr, indices, SOURCES)


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("shares", [(), (0.0,), (0.05,), (0.5, 1.0), (1.0, 1.0), (1.0, 0.0, 0.1)])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 20), (20, 3)])
@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_weights", [False, True])
def test_the_sum_is_that_of_its_terms_however_many_destinations_have_edges(
    shares: tuple[float, ...], inputs: int, outputs: int, has_own: bool, activation: str, has_weights: bool
) -> None:
    h, bias, own = numbers(SOURCES, inputs), numbers(outputs), numbers(outputs, inputs)
    weights = [numbers(outputs, inputs) for _ in shares]
    adjacencies = [edges_to(share, seed) for seed, share in enumerate(shares)]
    if has_weights:
        adjacencies = [replace(of, weight=numbers(of.indices.numel()).detach().float()) for of in adjacencies]

    sums = LayerSum(DESTINATIONS, bias)
    expected = bias.repeat(DESTINATIONS, 1)
    if has_own:
        sums.add_own(h, own)
        expected = expected + h[:DESTINATIONS] @ own.T
    for adjacency, weight in zip(adjacencies, weights, strict=True):
        sums.add_neighbors(h, adjacency, weight)
        operands = (adjacency.indptr, adjacency.indices)
        if adjacency.weight is None:
            expected = expected + segment_mean_reference(h, *operands) @ weight.T
        else:
            expected = expected + segment_weighted_sum_reference(h, adjacency.weight, *operands) @ weight.T
    out = sums.total("relu" if activation == "relu" else "none")
    expected = expected.relu() if activation == "relu" else expected

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    pull = numbers(DESTINATIONS, outputs).detach()
    operands = (bias, *weights, *((h, own) if has_own else ()))
    ours = torch.autograd.grad((out * pull).sum(), operands)
    theirs = torch.autograd.grad((expected * pull).sum(), operands)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_a_hop_that_was_skipped_gives_its_weight_a_gradient_of_zeros() -> None:
    h, bias, weight = numbers(SOURCES, 4), numbers(3), numbers(3, 4)
    sums = LayerSum(DESTINATIONS, bias)
    sums.add_neighbors(h, None, weight)
    sums.total("relu").sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


WORDS = st.text(st.sampled_from("ab.:%2E"), min_size=1, max_size=4)
TYPES = st.lists(WORDS, min_size=1, max_size=3).filter(lambda names: len(names) != 2)


@given(first=TYPES, second=TYPES)
def test_names_are_unique_and_hold_no_dot(first: list[str], second: list[str]) -> None:
    names = parameter_name(*first), parameter_name(*second)
    assert (names[0] == names[1]) is (first == second)
    assert "." not in names[0]
    nn.ModuleDict({names[0]: nn.Identity()})


def test_attributes_of_containers_may_be_types() -> None:
    container = nn.ModuleDict({parameter_name(name): nn.Identity() for name in ("items", "keys", "type")})
    assert len(container) == 3


# A GCN is torch_geometric's with the same weights; it needs neighbors with weights.


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
    with pytest.raises(ValueError, match=r"no weights, which GCN needs; .* rule=khop.SymmetricSum\(\)"):
        model(graph.batch(torch.arange(4), [2, 2], "node"))


# A GIN is torch_geometric's with the same weights, and sums over all neighbors in expectation.


def batch_of(graph: SmallGraph, target: str, fanouts: list[int]) -> Batch:
    """A batch of all nodes of a type, with weights that sum."""
    nodes = torch.arange(graph.store.num_nodes(target))
    seeds = Seeds({target: nodes}, {target: nodes})
    choice = ColumnChoice({t: ("x",) for t, of in graph.features.columns.items() if "x" in of}, {}, {})
    sample = NeighborSampler(graph.store, fanouts, rule=Sum()).sample(seeds, DrawKey(3))
    sample, columns, of_seeds = gather_columns(graph.features, choice, sample)
    return Batch(sample, seeds.nodes, columns, of_seeds, 0, 0, nodes.numel())


def test_over_all_neighbors_it_is_that_of_torch_geometric_gin() -> None:
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


def test_exact_inference_of_several_types_is_the_full_graph_gin() -> None:
    graph = shop(torch.float64)
    model = GIN.for_graph(graph.store, 8, 2, embedding=0, norm="layer", residual="add").double()
    every = model(batch_of(graph, "item", [-1, -1])).detach()
    exact = layerwise_inference(model, graph.store, graph.features, "item", rule=Sum(), chunk_size=7)
    torch.testing.assert_close(exact, every, rtol=0, atol=1e-10)


def test_every_parameter_has_a_gradient_gin() -> None:
    graph = shop()
    model = GIN.for_graph(graph.store, 8, 2, embedding=0, norm="layer")
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        model(batch_of(graph, "item", fanouts)).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_neighbors_without_weights_are_refused_with_the_remedy_gin() -> None:
    graph = one_type()
    model = GIN.for_graph(graph.store, hidden=8)
    with pytest.raises(ValueError, match=r"no weights, which GIN needs; draw them with rule=khop.Sum\(\)"):
        model(graph.batch(torch.arange(4), [2, 2], "node"))
