"""Exact inference is the full-graph forward pass, computed in chunks; sampled inference takes any model.

Rows of nodes come from one store and columns of edges from another, in one gather.

Inputs of an evaluation by forward(batch): the columns and hops of whoever names them first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from khop.batch import Adjacency, Batch, Block
from khop.distributed.processes.group import Group
from khop.draw import DrawKey
from khop.graph.features.store import Rows
from khop.graph.features.table import FeatureTable
from khop.graph.rule import Rule
from khop.graph.store import csc_graph_from_edges
from khop.inference.node_outputs import (
    BesideRows,
    all_neighbors,
    columns_read,
    evaluation_sampler,
    layerwise_inference,
    sampled_inference,
)
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.loading.ordered_map import InFlight
from khop.models.layer import aggregated
from khop.models.sage import SAGE
from khop.models.stack import Sequential
from khop.sampling.rules.sum import Sum
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import UNIFORM, Uniform
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.sampling.seeds import Seeds
from support.small_graphs import SmallGraph, one_type, shop

GRAPHS = [pytest.param(one_type, "node", id="one-type"), pytest.param(shop, "item", id="shop")]
X_AND_Y = ColumnChoice({"node": ("x",)}, {}, {"node": ("y",)})


class Convolutions(nn.Module):
    """A model of a user's own that exposes its layers, on torch_geometric's convolutions."""

    input_columns = {"node": ("x",)}  # noqa: RUF012
    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(7, 8), SAGEConv(8, 8)])
        self.out = nn.Linear(8, 3)

    def encode(self, batch: Batch) -> dict[str, Tensor]:
        return {"node": batch["x"]}

    def layer(self, index: int, h: dict[str, Tensor], block: Block) -> dict[str, Tensor]:
        x = h["node"]
        return {"node": self.layers[index]((x, x[: block.num_dst]), block.edge_index).relu()}

    def head(self, node_type: str, h: Tensor) -> Tensor:
        return self.out(h)

    def full(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        return self.out(x)


class Plain(nn.Module):
    """A model that is only a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 3)

    def forward(self, batch: Batch) -> Tensor:
        return self.linear(batch["x"])[batch.seed_index]


def full_graph(model: SAGE, graph: SmallGraph, node_type: str) -> Tensor:
    """All nodes in one batch of all neighbors, which tests/models proves to be the dense forward pass."""
    model.eval()
    nodes = torch.arange(graph.store.num_nodes(node_type))
    return model(graph.batch(nodes, [-1] * model.num_layers, node_type)).detach()


@pytest.mark.core(1)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("chunk_size", [1, 7, 1000])
@pytest.mark.parametrize(("make", "target"), GRAPHS)
def test_layer_by_layer_is_the_full_graph_forward(
    make: Callable[[torch.dtype], SmallGraph],
    target: str,
    chunk_size: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    graph = make(dtype)
    model = SAGE.for_graph(
        graph.store, hidden=8, embedding=0, layers=3, norm="layer", residual="add", dropout=0.5
    ).to(dtype)

    output = layerwise_inference(model, graph.store, graph.features, target, chunk_size=chunk_size)

    assert output.dtype == dtype
    torch.testing.assert_close(output, full_graph(model, graph, target), rtol=0, atol=tolerance)


def test_a_model_of_torch_geometrics_convolutions_gives_its_full_graph_forward() -> None:
    graph = one_type()
    model = Convolutions()
    expected = model.full(graph.features.columns["node"]["x"], torch.stack(graph.edges["node", "to", "node"]))
    output = layerwise_inference(model, graph.store, graph.features, "node", chunk_size=16)
    torch.testing.assert_close(output, expected.detach(), rtol=0, atol=1e-5)


class Aggregates(nn.Module):
    """A layer that only aggregates, as all layers of khop do before their nonlinearity."""

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return aggregated(x, adjacency)


@pytest.mark.parametrize(
    "rule",
    [
        Uniform(),
        Uniform(replacement=True),
        Weighted("weight", replacement=True),
        Weighted("mask"),
        Sum(),
        Sum(Weighted("weight", replacement=True)),
    ],
    ids=str,
)
def test_the_mean_over_many_sampled_aggregations_is_the_exact_one(rule: Rule) -> None:
    """Within six standard errors of the mean over independent draws, one for each disjoint tree."""
    random, count, draws = torch.Generator().manual_seed(1), 12, 1500
    ends = torch.randint(count, (60,), generator=random), torch.randint(count, (60,), generator=random)
    weight = torch.rand(60, generator=random) * torch.randint(4, (60,), generator=random)
    columns = {("node", "to", "node"): {"weight": weight, "mask": weight > 0}}
    of_nodes = {"node": {"x": torch.randn(count, 3, generator=random, dtype=torch.float64)}}
    edges = {("node", "to", "node"): ends}
    store = csc_graph_from_edges({"node": count}, edges, columns={**of_nodes, **columns})
    features = FeatureTable(of_nodes)
    model = Sequential([Aggregates()])

    def sampled(fanout: int, times: int) -> Tensor:
        nodes = torch.arange(count).repeat(times)
        seeds = Seeds({"node": nodes}, {"node": torch.arange(nodes.numel())})
        sampler = NeighborSampler(store, [fanout], rule=rule, trees="disjoint")
        choice = ColumnChoice({"node": ("x",)}, {}, {})
        sample, rows, of_seeds = gather_columns(features, choice, sampler.sample(seeds, DrawKey(4)))
        out = model(Batch(sample, seeds.nodes, rows, of_seeds, 0, 0, nodes.numel()))
        return out.view(times, count, 3)

    exact = layerwise_inference(model, store, features, "node", rule=rule, chunk_size=5)
    torch.testing.assert_close(sampled(-1, 1)[0], exact, rtol=0, atol=1e-12)
    few = sampled(2, draws)
    error = 6 * few.std(0) / draws**0.5 + 1e-6
    assert bool(((few.mean(0) - exact).abs() <= error).all())
    assert float(few.std(0).max()) > 0.1


def test_a_rule_with_time_limits_is_refused() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0)
    with pytest.raises(ValueError, match=r"samples by Temporal.*evaluation gives nodes no times"):
        layerwise_inference(model, graph.store, graph.features, "node", rule=Temporal("time"))


def test_some_nodes_have_the_rows_that_they_have_among_all() -> None:
    graph = shop()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0)
    nodes = torch.tensor([7, 3, 39, 3])
    rows = layerwise_inference(model, graph.store, graph.features, "item", nodes=nodes, chunk_size=3)
    torch.testing.assert_close(rows, full_graph(model, graph, "item")[nodes], rtol=0, atol=1e-5)


def test_no_nodes_have_no_rows() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0)
    nothing = torch.empty(0, dtype=torch.int64)
    assert layerwise_inference(model, graph.store, graph.features, "node", nodes=nothing).shape == (0, 3)


def test_threads_change_no_bit() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, layers=3)
    outputs = [
        layerwise_inference(
            model, graph.store, graph.features, "node", chunk_size=5, in_flight=InFlight(threads, 6)
        )
        for threads in (1, 2, 4)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_progress_counts_the_nodes_of_all_layers() -> None:
    graph = shop()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, layers=2)
    seen: list[tuple[int, int]] = []
    layerwise_inference(
        model, graph.store, graph.features, "item", chunk_size=16, progress=lambda *at: seen.append(at)
    )
    total = (40 + 30 + 5) + 40  # items, users and tags, then the items alone
    assert {of for _, of in seen} == {total}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (total, total)


def test_a_model_without_layers_is_refused_with_both_remedies() -> None:
    graph = one_type()
    with pytest.raises(
        ValueError,
        match=r"Plain does not expose.*forward\(x, adjacency\).*num_layers.*sampled_inference",
    ):
        layerwise_inference(Plain(), graph.store, graph.features, "node")


def test_types_and_nodes_that_there_are_no_outputs_of_are_named() -> None:
    graph = shop()
    model = SAGE.for_graph(graph.store, hidden=8, target="item", embedding=5)

    def infer(node_type: str, nodes: object = None) -> None:
        layerwise_inference(model, graph.store, graph.features, node_type, nodes=nodes)  # type: ignore[arg-type]

    with pytest.raises(
        ValueError, match=r"node type 'user': layer \d of the SAGE does not compute rows of it; give"
    ):
        infer("user")
    with pytest.raises(ValueError, match=r"seeds of 'item': there is no node 40; ids go from 0 to 39"):
        infer("item", torch.tensor([3, 40]))


def test_modes_and_gradients_are_as_before_and_no_thread_is_left() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, dropout=0.5)
    model.train()
    model.heads.eval()
    before = threading.active_count()
    output = layerwise_inference(model, graph.store, graph.features, "node", chunk_size=8)
    assert not output.requires_grad
    assert model.training
    assert model.layers[0].training
    assert not model.heads.training
    assert threading.active_count() == before


def test_an_error_in_a_layer_leaves_no_thread_and_the_mode_as_it_was() -> None:
    graph = one_type()
    model = Convolutions()
    model.out = nn.Linear(9, 3)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layerwise_inference(model, graph.store, graph.features, "node", chunk_size=8)
    assert model.training
    assert threading.active_count() == before


def test_samples_of_all_neighbors_give_the_exact_values() -> None:
    graph = one_type()
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0, norm="layer")
    nodes = torch.arange(60)
    output = sampled_inference(
        model, NeighborSampler(graph.store, [-1, -1]), graph.features, "node", nodes=nodes, columns=X_AND_Y
    )
    torch.testing.assert_close(output, full_graph(model, graph, "node"), rtol=0, atol=1e-5)


def test_sampled_values_depend_on_the_seed_and_not_on_chunks_or_the_other_nodes() -> None:
    graph = one_type(num_edges=900)
    model = SAGE.for_graph(graph.store, hidden=8, embedding=0).double()
    sampler = NeighborSampler(graph.store, [3, 3])

    def outputs(nodes: Tensor, chunk_size: int, seed: int) -> Tensor:
        return sampled_inference(
            model,
            sampler,
            graph.features,
            "node",
            nodes=nodes,
            columns=X_AND_Y,
            seed=seed,
            chunk_size=chunk_size,
        )

    together = outputs(torch.arange(60), 60, seed=1)
    torch.testing.assert_close(outputs(torch.arange(60), 7, seed=1), together, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        outputs(torch.tensor([41, 5]), 60, seed=1), together[[41, 5]], rtol=0, atol=1e-12
    )
    assert not torch.allclose(outputs(torch.arange(60), 60, seed=2), together)


def test_any_module_over_a_batch_can_be_sampled() -> None:
    graph = one_type()
    model = Plain().double()
    output = sampled_inference(
        model,
        NeighborSampler(graph.store, [2]),
        graph.features,
        "node",
        nodes=torch.arange(9),
        columns=X_AND_Y,
    )
    expected = model.linear(graph.features.columns["node"]["x"][:9].double())
    torch.testing.assert_close(output, expected.detach())


class SlowToAsk(Group):
    """Of three chunks another rank has the first; whoever asks first is told last, that there are no more."""

    def dealer(self) -> Callable[[], int]:
        turns, lock, all_dealt = iter([1, 2, 3]), threading.Lock(), threading.Event()
        callers = count()

        def turn() -> int:
            if next(callers) == 0:
                all_dealt.wait(10)
            with lock:
                mine = next(turns)
            if mine == 2:
                all_dealt.set()
            return mine

        return turn


class OwnFeatures(nn.Module):
    """The features of the seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch) -> Tensor:
        return self.scale * batch["x"][batch.seed_index]


def test_a_chunk_that_a_thread_gets_while_another_finds_none_left_is_computed() -> None:
    graph = one_type()
    x = graph.features.columns["node"]["x"]
    rows = sampled_inference(
        OwnFeatures(),
        NeighborSampler(graph.store, [1]),
        graph.features,
        "node",
        nodes=torch.arange(3),
        columns=X_AND_Y,
        chunk_size=1,
        in_flight=InFlight(threads=2),
        group=SlowToAsk(),
    )
    assert torch.equal(rows[1:], x[1:3])


EDGE = ("n", "to", "n")


def test_nodes_and_edges_have_a_store_each() -> None:
    rows = FeatureTable({"n": {"values": torch.arange(6.0).view(3, 2)}})
    below = FeatureTable({"n": {"x": torch.zeros(3)}, EDGE: {"r": torch.arange(4)}})
    store = BesideRows(rows, below)
    assert set(store.specs) == {"n", EDGE}
    assert set(store.specs["n"]) == {"values"}
    wanted = {"n": Rows(torch.tensor([2]), ("values",)), EDGE: Rows(torch.tensor([3, 0]), ("r",))}
    for found in (store.gather(wanted), store.with_threads(2).gather(wanted)):
        assert found["n"]["values"].tolist() == [[4, 5]]
        assert found[EDGE]["r"].tolist() == [3, 0]
    assert not store.is_collective
    assert len(store.local_rows(EDGE)) >= 4


GRAPH = shop()
SCHEMA = GRAPH.store.schema
BUYS, HAS = ("user", "buys", "item"), ("item", "has", "tag")


class Reading(nn.Module):
    """A model that names its columns and its hops."""

    input_columns = ("x",)
    num_layers = 3


def test_columns_are_the_given_ones_or_the_models_or_the_loaders_or_all_but_labels() -> None:
    loaders = ColumnChoice({"item": ("x",)}, {}, {"item": ("y",)})
    plain = nn.Linear(1, 1)
    assert columns_read(Reading(), SCHEMA, {"user": ["x"]}, loaders).of_nodes == {"user": ("x",)}
    assert columns_read(Reading(), SCHEMA, None, loaders).of_nodes == {"user": ("x",), "item": ("x",)}
    of_loader = columns_read(plain, SCHEMA, None, loaders)
    assert (of_loader.of_nodes, of_loader.of_seeds) == ({"item": ("x",)}, {})
    of_all = columns_read(plain, SCHEMA, None, None).of_nodes
    assert {t: names for t, names in of_all.items() if names} == {"user": ("x",), "item": ("x",)}


def test_a_sampler_has_the_settings_of_the_loaders() -> None:
    like = NeighborSampler(GRAPH.store, [2], expansion=Expansion.SUBGRAPH)
    made = evaluation_sampler(GRAPH.store, [-1, -1], ColumnChoice({}, {}, {}), like, UNIFORM)
    assert isinstance(made, NeighborSampler)
    assert (made.expansion, made.num_layers) == (Expansion.SUBGRAPH, 2)
    plain = evaluation_sampler(GRAPH.store, [-1], ColumnChoice({}, {BUYS: ("w",)}, {}), None, UNIFORM)
    assert isinstance(plain, NeighborSampler)
    assert plain.hops[0].edge_ids


def test_hops_are_the_samplers_or_the_models() -> None:
    followed = NeighborSampler(GRAPH.store, [{BUYS: 2, "*": 0}, {HAS: 1, BUYS: 1, "*": 0}])
    exact = all_neighbors(nn.Linear(1, 1), followed, warn=False)
    hops = NeighborSampler(GRAPH.store, exact).hops
    assert [{t for t, fanout in hop.fanouts.items() if fanout} for hop in hops] == [{BUYS}, {BUYS, HAS}]
    with pytest.warns(UserWarning, match="Reading does not expose its layers: .* 3 hops deep"):
        assert list(all_neighbors(Reading(), None, warn=True)) == [-1, -1, -1]
    with pytest.raises(ValueError, match="the number of hops is unknown"):
        all_neighbors(nn.Linear(1, 1), None, warn=False)
