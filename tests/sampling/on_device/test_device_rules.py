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
    Seeds,
    Temporal,
    TemporalStrategy,
    TopK,
    Weighted,
)
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.rules.rule import Rule
from khop.sampling.on_device.device_sampler import DeviceSampler
from support.examples import few
from support.same_samples import assert_same
from support.timed_graphs import RULES, timed_graphs
from support.triton_rows import DEVICE

EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 20]), min_size=1, max_size=2)


def check(graph: CscGraph, seeds: Seeds, rule: Rule, fanouts: list[int], expansion: Expansion) -> None:
    """The batch twice, and one without seeds in between."""
    sampler = NeighborSampler(graph, fanouts, rule=rule, expansion=expansion, edge_ids=True)
    batches = [(seeds, DrawKey(3)), (first_none(seeds), DrawKey(4)), (seeds, DrawKey(5))]
    device_sampler = DeviceSampler.measured(sampler, batches, DEVICE)
    for own_seeds, key in batches:
        assert_same(device_sampler.sample(own_seeds, key), sampler.sample(own_seeds, key))
    assert device_sampler.overflows == 0


def first_none(seeds: Seeds) -> Seeds:
    times = None if seeds.times is None else {t: values[:0] for t, values in seeds.times.items()}
    return Seeds(
        {t: ids[:0] for t, ids in seeds.nodes.items()},
        {t: positions[:0] for t, positions in seeds.positions.items()},
        times,
    )


@EXPANSIONS
@settings(max_examples=few(4), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(asked=timed_graphs(), rule=RULES, fanouts=FANOUTS)
def test_temporal_batches_are_those_of_the_cpu(
    asked: tuple[CscGraph, Seeds], rule: Temporal, fanouts: list[int], expansion: Expansion
) -> None:
    check(*asked, rule, fanouts, expansion)


@EXPANSIONS
@settings(max_examples=few(4), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(asked=timed_graphs(), replacement=st.booleans(), fanouts=FANOUTS)
def test_weighted_batches_are_those_of_the_cpu(
    asked: tuple[CscGraph, Seeds], replacement: bool, fanouts: list[int], expansion: Expansion
) -> None:
    graph, seeds = asked
    assume(not (replacement and -1 in fanouts))  # such neighbors have weights
    rule = Weighted("weight", replacement)
    check(graph, replace(seeds, times=None), rule, fanouts, expansion)


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
