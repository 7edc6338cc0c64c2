"""The hop loop gives what the plain-Python reference gives, bit for bit, and its promises hold."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop import DrawKey, Expansion, NeighborSampler, Sample, Uniform
from khop.graph.rule import Hop
from khop.graph.store import CscGraph
from khop.sampling.node_set import NodeSet
from khop.testing.sampler import PROMISES, Make
from reference import hops
from reference.hops import PlainGraph, as_plain
from support.gate import WAIT_S
from support.random_graphs import EDGE, RowQuery, as_seeds, questions, ring, seeds

EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
KEY = DrawKey(11)


@EXPANSIONS
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], expansion: Expansion) -> None:
    promise(lambda graph: NeighborSampler(graph, [3, 2], expansion=expansion, edge_ids=True))


def answer(question: RowQuery, expansion: Expansion, index_dtype: torch.dtype) -> Sample:
    sampler = NeighborSampler(
        question.graph.opened(index_dtype),
        question.fanouts,
        rule=Uniform(question.replacement),
        expansion=expansion,
        edge_ids=True,
    )
    return sampler.sample(as_seeds(question.seeds), DrawKey(question.key))


@EXPANSIONS
@given(question=questions(), index_dtype=st.sampled_from([torch.int32, torch.int64]))
def test_the_sample_is_the_references(
    question: RowQuery, expansion: Expansion, index_dtype: torch.dtype
) -> None:
    expected = hops.sample(
        question.graph,
        question.seeds,
        question.fanouts_by_type(),
        question.replacement,
        expansion is Expansion.LAYERED,
        question.key,
    )
    assert as_plain(answer(question, expansion, index_dtype)) == expected


@given(question=questions())
def test_a_subgraph_counts_what_each_hop_added(question: RowQuery) -> None:
    sample = answer(question, Expansion.SUBGRAPH, torch.int32)
    subgraph = sample.subgraph
    assert subgraph is not None
    for node_type, counts in subgraph.nodes_per_hop.items():
        assert len(counts) == len(question.fanouts) + 1
        assert sum(counts) == sample.nodes[node_type].numel()
        unique_seeds = set(question.seeds.get(node_type, []))
        assert counts[0] == len(unique_seeds)
    for edge_type, adjacency in subgraph.adjacencies.items():
        assert len(subgraph.edges_per_hop[edge_type]) == len(question.fanouts)
        assert sum(subgraph.edges_per_hop[edge_type]) == adjacency.indices.numel()
        assert adjacency.num_dst == sample.nodes[edge_type[2]].numel()
        assert adjacency.num_src == sample.nodes[edge_type[0]].numel()


def test_a_subgraphs_blocks_are_views() -> None:
    sampler = NeighborSampler(ring(100, 6), [3, 2], expansion=Expansion.SUBGRAPH, edge_ids=True)
    sample = sampler.sample(seeds(0, 50), KEY)
    assert sample.subgraph is not None
    whole = sample.subgraph.adjacencies[EDGE]
    for block in sample.blocks:
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(block.adjacency, name).data_ptr() == getattr(whole, name).data_ptr()


@EXPANSIONS
def test_edge_ids_come_on_request_only(expansion: Expansion) -> None:
    sample = NeighborSampler(ring(10, 2), [2], expansion=expansion).sample(seeds(1), KEY)
    assert sample.blocks[0].adjacency.edge_ids is None


def test_in_the_layered_expansion_a_hops_draw_of_a_node_does_not_depend_on_the_batch() -> None:
    sampler = NeighborSampler(ring(1000, 40), [5, 5], edge_ids=True)
    alone = sampler.sample(seeds(4), KEY).blocks[-1].adjacency
    among = sampler.sample(seeds(9, 4, 500), KEY).blocks[-1].adjacency
    assert alone.edge_ids is not None
    assert among.edge_ids is not None
    assert alone.edge_ids.tolist() == among.edge_ids[5:10].tolist()


def test_the_draws_of_two_hops_differ() -> None:
    sampler = NeighborSampler(ring(1000, 40), [5, 5], edge_ids=True)
    outer, inner = sampler.sample(seeds(4), KEY).blocks
    assert outer.adjacency.edge_ids is not None
    assert inner.adjacency.edge_ids is not None
    assert outer.adjacency.edge_ids[:5].tolist() != inner.adjacency.edge_ids.tolist()


def test_no_fanouts_give_the_seeds_alone() -> None:
    sample = NeighborSampler(ring(10, 2), []).sample(seeds(3, 3), KEY)
    assert sample.nodes["node"].tolist() == [3]
    assert sample.blocks == ()


def test_a_sampler_goes_to_another_process_also_after_use() -> None:
    sampler = NeighborSampler(ring(50, 5), [2, 2], edge_ids=True)
    expected = as_plain(sampler.sample(seeds(3), KEY))
    assert as_plain(pickle.loads(pickle.dumps(sampler)).sample(seeds(3), KEY)) == expected


class Watched:
    """A store, and a node set's `reach`, that note from when to when each native call took."""

    def __init__(self, inner: CscGraph, monkeypatch: pytest.MonkeyPatch) -> None:
        self.schema = inner.schema
        self.num_nodes = inner.num_nodes
        self.frontier_device = inner.frontier_device
        self.drawing: list[tuple[float, float]] = []
        self.inserting: list[tuple[float, float]] = []
        self.sample_hop = self._noting(inner.sample_hop, self.drawing)
        monkeypatch.setattr(NodeSet, "reach", self._noting(NodeSet.reach, self.inserting))

    def for_hops(self, hops: Sequence[Hop]) -> Callable[..., object]:
        return self.sample_hop

    @staticmethod
    def _noting(function: Callable[..., object], spans: list[tuple[float, float]]) -> Callable[..., object]:
        def noting(*arguments: object) -> object:
            begun = time.perf_counter()
            result = function(*arguments)
            spans.append((begun, time.perf_counter()))
            return result

        return noting


def test_while_two_threads_sample_a_python_loop_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In some long call of the core it never rests for half the call; with the GIL held, it would in all.

    A busy machine may have no core for the loop: then they sample once more.
    """
    graph = Watched(ring(200_000, 64), monkeypatch)
    sampler = NeighborSampler(graph, [40, -1])

    def samples(start: int) -> None:
        sampler.sample(seeds(*range(start, 200_000, 20)), KEY)

    resting, end = [graph.drawing, graph.inserting], time.monotonic() + WAIT_S
    while resting:
        assert time.monotonic() < end
        graph.drawing.clear()
        graph.inserting.clear()
        turns = turns_beside([threading.Thread(target=samples, args=(start,)) for start in range(2)])
        resting = [spans for spans in resting if not runs_on(turns, spans)]


def turns_beside(threads: list[threading.Thread]) -> list[float]:
    """When a Python loop came round while they ran."""
    for thread in threads:
        thread.start()
    turns = [time.perf_counter()]
    while any(thread.is_alive() for thread in threads):
        turns.append(time.perf_counter())
    return turns


def runs_on(turns: list[float], spans: list[tuple[float, float]]) -> bool:
    """Whether it never rested for half of one of the longest: of each thread's second hop."""
    longest = sorted(spans, key=lambda span: span[1] - span[0])[-4:]
    return any(longest_rest(turns, *span) < (span[1] - span[0]) / 2 for span in longest)


def longest_rest(turns: list[float], begun: float, ended: float) -> float:
    """The longest time in a span without a turn."""
    inside = [begun, *(turn for turn in turns if begun < turn < ended), ended]
    return max(later - earlier for earlier, later in pairwise(inside))


@pytest.mark.parametrize(
    ("fanout", "message"),
    [
        (-2, r"fanout -2 for \('node', 'to', 'node'\): must be 0 or more, or -1"),
        (1.5, "fanout 1.5 for"),
        (True, "fanout True for"),
        ({("node", "by", "node"): 3}, r"fanout 3 for \('node', 'by', 'node'\): fits no edge type of"),
    ],
)
def test_a_wrong_fanout_is_named(fanout: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborSampler(ring(10, 2), [5, fanout])


def test_seeds_with_times_are_refused_rather_than_shown_their_future() -> None:
    timed = replace(seeds(3), times={"node": torch.tensor([17])})
    with pytest.raises(ValueError, match="seeds have times"):
        NeighborSampler(ring(10, 2), [2]).sample(timed, KEY)


def test_an_unknown_expansion_is_an_error() -> None:
    with pytest.raises(ValueError, match="sideways"):
        NeighborSampler(ring(10, 2), [2], expansion="sideways")


def test_a_type_without_nodes_takes_part() -> None:
    graph = PlainGraph({"user": 2, "item": 0}, {("item", "by", "user"): []}).opened()
    sample = NeighborSampler(graph, [3], edge_ids=True).sample(as_seeds({"user": [1]}), KEY)
    assert sample.nodes["item"].tolist() == []
    assert sample.blocks[0].adjacency.indptr.tolist() == [0, 0]


@EXPANSIONS
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_a_sample_split_over_threads_has_the_same_bits(expansion: Expansion, threads: int) -> None:
    sampler = NeighborSampler(ring(6000, 9), [5, 4], expansion=expansion, edge_ids=True)
    wanted = seeds(*range(0, 6000, 3))  # enough rows for every thread to get some
    assert as_plain(sampler.with_threads(threads).sample(wanted, KEY)) == as_plain(
        sampler.sample(wanted, KEY)
    )


def test_a_sampler_is_split_over_a_thread_at_least() -> None:
    with pytest.raises(ValueError, match="threads 0: must be a whole number, 1 or more"):
        NeighborSampler(ring(5, 2), [1]).with_threads(0)
