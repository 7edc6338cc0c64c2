"""Draws by weight and time on the device with static shapes are those of the CPU, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from khop import (
    DrawKey,
    Expansion,
    Labor,
    NeighborSampler,
    RelationMean,
    Seeds,
    Sum,
    SymmetricSum,
    Temporal,
    TemporalStrategy,
    TopK,
    Uniform,
    Weighted,
)
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.on_device.device_batch import padded_sample
from khop.sampling.on_device.device_sampler import DeviceSampler
from khop.sampling.sampler import Trees
from support.device_batches import device_batch
from support.examples import few
from support.host_reads import counting
from support.random_graphs import ring
from support.same_samples import assert_same
from support.timed_graphs import RULES, timed_graphs
from support.triton_rows import DEVICE

BATCH = Seeds({"node": torch.tensor([3, 9, 3])}, {"node": torch.arange(3)}), DrawKey(1)
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 20]), min_size=1, max_size=2)


def check(graph: CscGraph, seeds: Seeds, rule: Rule, fanouts: list[int], expansion: Expansion) -> None:
    """The batch twice, one without seeds in between, and the batch with the capacities of no seeds."""
    sampler = NeighborSampler(graph, fanouts, rule=rule, expansion=expansion, edge_ids=True)
    batches = [(seeds, DrawKey(3)), (first_none(seeds), DrawKey(4)), (seeds, DrawKey(5))]
    device_sampler = DeviceSampler.measured(sampler, batches, DEVICE)
    for own_seeds, key in batches:
        assert_same(device_sampler.sample(own_seeds, key), sampler.sample(own_seeds, key))
    assert device_sampler.overflows == 0
    too_small = DeviceSampler.measured(sampler, batches[1:2], DEVICE)
    assert_same(too_small.sample(*batches[2]), sampler.sample(*batches[2]))


def first_none(seeds: Seeds) -> Seeds:
    times = None if seeds.times is None else {t: values[:0] for t, values in seeds.times.items()}
    return Seeds(
        {t: ids[:0] for t, ids in seeds.nodes.items()},
        {t: positions[:0] for t, positions in seeds.positions.items()},
        times,
    )


@pytest.mark.core(1)
@EXPANSIONS
@settings(max_examples=few(2), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(asked=timed_graphs(), rule=RULES, fanouts=FANOUTS)
def test_temporal_batches_are_those_of_the_cpu(
    asked: tuple[CscGraph, Seeds], rule: Temporal, fanouts: list[int], expansion: Expansion
) -> None:
    check(*asked, rule, fanouts, expansion)


@pytest.mark.long
@EXPANSIONS
@settings(max_examples=few(2), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(asked=timed_graphs(), replacement=st.booleans(), fanouts=FANOUTS)
def test_weighted_batches_are_those_of_the_cpu(
    asked: tuple[CscGraph, Seeds], replacement: bool, fanouts: list[int], expansion: Expansion
) -> None:
    graph, seeds = asked
    assume(not (replacement and -1 in fanouts))  # such neighbors have weights
    rule = Weighted("weight", replacement)
    check(graph, replace(seeds, times=None), rule, fanouts, expansion)


@pytest.mark.long
@EXPANSIONS
def test_latest_edges_need_no_draw(expansion: Expansion) -> None:
    """The last two of ten edges up to the limit, whatever the key."""
    edge = ("node", "to", "node")
    ends = (torch.arange(1, 11), torch.zeros(10, dtype=torch.int64))
    columns = {edge: {"time": torch.arange(10) * 2}}
    graph = csc_graph_from_edges({"node": 11}, {edge: ends}, columns=columns, sort_by="time")
    seeds = Seeds(
        {"node": torch.zeros(2, dtype=torch.int64)},
        {"node": torch.arange(2)},
        {"node": torch.tensor([9, -1])},
    )
    sampler = NeighborSampler(graph, [2], rule=Temporal("time", TemporalStrategy.LATEST), expansion=expansion)
    device_sampler = DeviceSampler.measured(sampler, [(seeds, DrawKey(1))], DEVICE)
    for key in range(3):
        sample = device_sampler.sample(seeds, DrawKey(key))
        adjacency = sample.blocks[0].adjacency
        drawn = sample.nodes["node"].cpu()[adjacency.indices.cpu().long()]
        assert drawn.tolist() == [4, 5]
        assert adjacency.indptr.tolist()[:3] == [0, 2, 2]


def two_types() -> tuple[CscGraph, Seeds]:
    """Users and items with edges both ways, a third type without in-edges, and nodes without any edge."""
    ends = [torch.randint(18, (2, 60), generator=torch.Generator().manual_seed(n)) for n in range(3)]
    edges = {
        ("user", "buys", "item"): (ends[0][0], ends[0][1]),
        ("item", "bought_by", "user"): (ends[1][0], ends[1][1]),
        ("tag", "on", "item"): (ends[2][0] % 4, ends[2][1] // 2),
    }
    seeds = {"item": torch.tensor([5, 3, 5, 19]), "user": torch.tensor([1])}
    graph = csc_graph_from_edges({"user": 20, "item": 20, "tag": 4}, edges)
    return graph, Seeds(seeds, {t: torch.arange(ids.numel()) for t, ids in seeds.items()})


@pytest.mark.core(1)
@EXPANSIONS
@pytest.mark.parametrize(
    ("rule", "trees"),
    [
        (Sum(), "merged"),
        (SymmetricSum(), "merged"),
        pytest.param(Sum(Uniform(replacement=True)), "merged", marks=pytest.mark.long),
        pytest.param(SymmetricSum(), "disjoint", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_weights_of_sums_are_those_of_the_cpu(rule: Rule, trees: Trees, expansion: Expansion) -> None:
    graph, seeds = two_types()
    fanouts: list[int | dict[str, int]] = [2, {"* buys *": -1, "* on *": 0, "*": 1}, 3]
    sampler = NeighborSampler(graph, fanouts, rule=rule, expansion=expansion, edge_ids=True, trees=trees)
    batches = [(first_none(seeds), DrawKey(4)), (seeds, DrawKey(5))]
    device_sampler = DeviceSampler.measured(sampler, batches, DEVICE)
    for own_seeds, key in batches:
        expected = sampler.sample(own_seeds, key)
        assert_same(device_sampler.sample(own_seeds, key), expected)
    assert device_sampler.overflows == 0
    weights = [a.weight for block in expected.blocks for a in block.adjacencies.values()]
    assert len({value for of_type in weights if of_type is not None for value in of_type.tolist()}) > 3


@pytest.mark.long
@EXPANSIONS
def test_weights_of_sums_are_computed_without_a_read(expansion: Expansion) -> None:
    sampler = NeighborSampler(ring(50, 4), [3, 2], rule=SymmetricSum(), expansion=expansion)
    seeds, key = BATCH
    batch = device_batch(sampler, BATCH)
    with counting() as reads:
        batch.write(seeds, key)
        batch.launch()
        padded = padded_sample(batch).sample.blocks[-1].adjacency
    assert reads == {}
    assert padded.weight is not None
    assert (padded.weight[: padded.indptr[-1]] > 0).all()


@pytest.mark.parametrize(
    "rule",
    [Sum(Weighted("weight")), Temporal("time", inner=Sum()), Sum(Labor()), RelationMean("time")],
    ids=str,
)
def test_other_weights_are_left_to_the_cpu(rule: Rule) -> None:
    edge = ("node", "to", "node")
    columns = {edge: {"weight": torch.ones(2), "time": torch.arange(2)}}
    graph = csc_graph_from_edges({"node": 2}, {edge: torch.eye(2).long()}, columns=columns, sort_by="time")
    times = {"node": torch.zeros(1, dtype=torch.int64)} if isinstance(rule, Temporal) else None
    seeds = Seeds({"node": torch.tensor([0])}, {"node": torch.arange(1)}, times)
    with pytest.raises(ValueError, match="no kernel draws by it on a device; sample on the CPU"):
        DeviceSampler.measured(NeighborSampler(graph, [1], rule=rule), [(seeds, DrawKey(1))], DEVICE)


@pytest.mark.long
@pytest.mark.parametrize(
    "rule",
    [
        Labor(),
        pytest.param(Labor(layer_dependent=True), marks=pytest.mark.long),
        pytest.param(TopK("weight"), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_first_edges_of_an_order_are_those_of_the_cpu(rule: Rule) -> None:
    """Twelve nodes with an edge from every fourth one: no source is twice in a row, and weights are tied."""
    edge = ("node", "to", "node")
    ends = torch.cartesian_prod(torch.arange(12), torch.arange(12))
    ends = ends[(ends.sum(1) % 4) < 2].T
    columns = {edge: {"weight": (ends[0] * 5 % 3).float()}}
    graph = csc_graph_from_edges({"node": 12}, {edge: (ends[0], ends[1])}, columns=columns)
    seeds = Seeds({"node": torch.tensor([3, 7])}, {"node": torch.arange(2)})
    check(graph, seeds, rule, [2, 3], Expansion.LAYERED)
