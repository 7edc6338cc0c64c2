"""Sampling by weight and time over several hops: nothing later than its seed, nothing of weight zero."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop import DrawKey, Expansion, NeighborSampler, Seeds, Temporal, TemporalStrategy, Weighted
from khop.graph.store import CscGraph, csc_graph_from_edges
from support.random_graphs import FANOUTS
from support.timed_graphs import RULES, timed_graphs

KEY = DrawKey(3)
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


@EXPANSIONS
@given(asked=timed_graphs(), rule=RULES, fanouts=st.lists(FANOUTS, min_size=1, max_size=3))
def test_no_edge_and_no_node_is_later_than_its_seed(
    asked: tuple[CscGraph, Seeds], rule: Temporal, fanouts: list[int], expansion: Expansion
) -> None:
    graph, seeds = asked
    sampler = NeighborSampler(graph, fanouts, rule=rule, expansion=expansion, edge_ids=True)
    sample = sampler.sample(seeds, KEY)
    assert sample.trees is not None
    assert seeds.times is not None
    limits = torch.cat([torch.empty(0, dtype=torch.int64), *seeds.times.values()])
    for block in sample.blocks:
        for edge_type, adjacency in block.adjacencies.items():
            source, destination = adjacency.edge_index
            tree = sample.trees[edge_type[2]][destination]
            assert torch.equal(sample.trees[edge_type[0]][source], tree)
            assert adjacency.edge_ids is not None
            own, nodes = (graph.columns.get(type_, {}).get("time") for type_ in (edge_type, edge_type[0]))
            if own is not None:
                assert (own[adjacency.edge_ids] <= limits[tree]).all()
            if nodes is not None:
                assert (nodes[sample.nodes[edge_type[0]][source]] <= limits[tree]).all()
            if isinstance(rule.inner, Weighted):
                assert (graph.columns[edge_type]["weight"][adjacency.edge_ids] > 0).all()


def star(times: list[int], weights: list[float]) -> CscGraph:
    """Node 0 hears from nodes 1, 2, ... at these times."""
    edge = ("node", "to", "node")
    count = len(times)
    columns = {edge: {"time": torch.tensor(times), "weight": torch.tensor(weights)}}
    ends = (torch.arange(1, count + 1), torch.zeros(count, dtype=torch.int64))
    return csc_graph_from_edges({"node": count + 1}, {edge: ends}, columns=columns, sort_by="time")


def drawn(graph: CscGraph, rule: Temporal | Weighted, fanout: int, *times: int) -> list[list[int]]:
    """The neighbors of a seed 0 at each of the times; at none without times."""
    ids = torch.zeros(max(len(times), 1), dtype=torch.int64)
    seeds = Seeds(
        {"node": ids}, {"node": torch.arange(ids.numel())}, {"node": torch.tensor(times)} if times else None
    )
    sample = NeighborSampler(graph, [fanout], rule=rule).sample(seeds, KEY)
    adjacency = sample.blocks[0].adjacency
    ends = adjacency.indptr.tolist()
    neighbors = sample.nodes["node"][adjacency.indices.long()].tolist()
    return [neighbors[begin:end] for begin, end in pairwise(ends)]


def test_each_seed_sees_its_own_past() -> None:
    graph = star([30, 10, 20], [1, 1, 1])
    assert drawn(graph, Temporal("time"), -1, 9, 10, 25, 99) == [[], [2], [2, 3], [2, 3, 1]]
    assert drawn(graph, Temporal("time", TemporalStrategy.LATEST), 1, 25, 99) == [[3], [1]]
    assert drawn(graph, Temporal("time", window=(10, 0)), -1, 25, 30, 41) == [[3], [3, 1], []]
    assert drawn(graph, Temporal("time", window=(20, -1)), -1, 30) == [[2, 3]]


def test_weights_and_times_together() -> None:
    graph = star([30, 10, 20, 5], [1, 0, 1, 0.5])
    assert drawn(graph, Temporal("time", inner=Weighted("weight")), -1, 25, 10) == [[4, 3], [4]]
    assert drawn(graph, Weighted("weight"), -1) == [[4, 3, 1]]
    repeated = Temporal("time", inner=Weighted("weight", replacement=True))
    assert set(drawn(graph, repeated, 200, 25)[0]) == {3, 4}


def test_seed_times_and_rules_that_do_not_fit_are_named() -> None:
    graph = star([1, 2], [1, 1])
    seeds = Seeds({"node": torch.tensor([0])}, {"node": torch.tensor([0])})
    timed = replace(seeds, times={"node": torch.tensor([5])})
    with pytest.raises(
        ValueError, match=r"seeds of 'node' have no times, which Temporal\(.*give the loader seed_times"
    ):
        NeighborSampler(graph, [1], rule=Temporal("time")).sample(seeds, KEY)
    with pytest.raises(ValueError, match=r"seeds have times, but Weighted\(.*use khop.Temporal"):
        NeighborSampler(graph, [1], rule=Weighted("weight")).sample(timed, KEY)
    for times in (torch.tensor([5.0]), torch.tensor([5, 6])):
        with pytest.raises(ValueError, match=r"times of 'node' are .*: give int64, one for each of 1 seeds"):
            NeighborSampler(graph, [1], rule=Temporal("time")).sample(
                replace(seeds, times={"node": times}), KEY
            )
    with pytest.raises(ValueError, match="no column 'when'"):
        NeighborSampler(graph, [1], rule=Temporal("when"))


def test_rows_that_do_not_rise_are_refused_with_the_way_out() -> None:
    graph = star([30, 10], [1, 1])
    edge = ("node", "to", "node")
    flipped = {edge: {"time": graph.columns[edge]["time"].flip(0)}}
    with pytest.raises(
        ValueError, match=r"rows are not sorted by 'time'.*khop graph sort GRAPH OUT --by time"
    ):
        drawn(replace(graph, columns=flipped), Temporal("time"), 1, 50)
