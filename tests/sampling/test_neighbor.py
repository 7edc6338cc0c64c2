"""The hop loop gives what the plain-Python reference gives, bit for bit, and its promises hold."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import hops
from tests.reference.hops import PlainBlock, PlainGraph, PlainSample
from tests.sampling.strategies import Question, questions

from khop import DrawKey, Expansion, NeighborSampler, Sample, Seeds, Uniform
from khop.draw import FrontierByType, Hop, NeighborsByType
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.kernels.node_index import NodeIndex

EDGE = ("node", "to", "node")
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
KEY = DrawKey(11)


def as_seeds(nodes: Mapping[str, list[int]]) -> Seeds:
    tensors = {node_type: torch.tensor(ids, dtype=torch.int64) for node_type, ids in nodes.items()}
    return Seeds(tensors, {node_type: torch.arange(ids.numel()) for node_type, ids in tensors.items()})


def seeds(*nodes: int) -> Seeds:
    return as_seeds({"node": list(nodes)})


def as_plain(sample: Sample) -> PlainSample:
    blocks = []
    for block in sample.blocks:
        rows = {}
        for edge_type, adjacency in block.adjacencies.items():
            assert adjacency.edge_ids is not None
            assert (adjacency.num_src, adjacency.num_dst) == (
                block.src_counts[edge_type[0]],
                block.dst_counts[edge_type[2]],
            )
            assert adjacency.indptr.dtype == adjacency.edge_ids.dtype == torch.int64
            assert adjacency.indices.dtype == torch.int32
            columns = (adjacency.indptr, adjacency.indices, adjacency.edge_ids)
            rows[edge_type] = tuple(column.tolist() for column in columns)
        blocks.append(PlainBlock(rows, dict(block.src_counts), dict(block.dst_counts)))
    return PlainSample(
        {node_type: ids.tolist() for node_type, ids in sample.nodes.items()},
        {node_type: index.tolist() for node_type, index in sample.seed_index.items()},
        blocks,
    )


def answer(question: Question, expansion: Expansion, index_dtype: torch.dtype) -> Sample:
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
    question: Question, expansion: Expansion, index_dtype: torch.dtype
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
def test_a_subgraph_counts_what_each_hop_added(question: Question) -> None:
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


def ring(num_nodes: int, degree: int) -> CscGraph:
    """Node i has in-edges from i + 1, ..., i + degree."""
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return csc_graph_from_edges({"node": num_nodes}, {EDGE: (sources, nodes)})


def test_a_subgraphs_blocks_are_views() -> None:
    sampler = NeighborSampler(ring(100, 6), [3, 2], expansion=Expansion.SUBGRAPH, edge_ids=True)
    sample = sampler.sample(seeds(0, 50), KEY)
    assert sample.subgraph is not None
    whole = sample.subgraph.adjacencies[EDGE]
    for block in sample.blocks:
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(block.adjacency, name).data_ptr() == getattr(whole, name).data_ptr()


@EXPANSIONS
def test_duplicate_seeds_share_a_row(expansion: Expansion) -> None:
    sampler = NeighborSampler(ring(10, 2), [2], expansion=expansion)
    sample = sampler.sample(seeds(7, 3, 7, 7), KEY)
    assert sample.seed_index["node"].tolist() == [0, 1, 0, 0]
    assert sample.nodes["node"].tolist()[:2] == [7, 3]
    assert sample.blocks[0].num_dst == 2
    assert sample.seed_index["node"].dtype == torch.int64


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


@EXPANSIONS
def test_threads_may_share_a_sampler(expansion: Expansion) -> None:
    sampler = NeighborSampler(ring(5000, 12), [6, 5, 4], expansion=expansion, edge_ids=True)
    asked = [seeds(*range(start, start + 40)) for start in range(0, 800, 40)]
    expected = [as_plain(sampler.sample(of_batch, KEY)) for of_batch in asked]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda of_batch: as_plain(sampler.sample(of_batch, KEY)), asked * 5))
    assert found == expected * 5


def test_a_sampler_goes_to_another_process_also_after_use() -> None:
    sampler = NeighborSampler(ring(50, 5), [2, 2])
    expected = as_plain_nodes(sampler.sample(seeds(3), KEY))
    assert as_plain_nodes(pickle.loads(pickle.dumps(sampler)).sample(seeds(3), KEY)) == expected


def as_plain_nodes(sample: Sample) -> list[int]:
    return sample.nodes["node"].tolist()


class FailsOnce:
    """A store that fails at the second hop that it is asked for."""

    def __init__(self, inner: CscGraph) -> None:
        self.schema = inner.schema
        self.num_nodes = inner.num_nodes
        self._inner = inner
        self._calls = 0

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        self._calls += 1
        if self._calls == 2:
            raise OSError("the disk is gone")
        return self._inner.sample_hop(frontier, hop, key)


def test_a_failed_sample_leaves_no_trace_in_the_next() -> None:
    sampler = NeighborSampler(FailsOnce(ring(10, 2)), [2, 2])
    with pytest.raises(OSError, match="disk is gone"):
        sampler.sample(seeds(0), KEY)
    assert sampler.sample(seeds(5), KEY).nodes["node"].tolist()[0] == 5


class Watched:
    """A store, and a node set's `insert`, that note from when to when each native call took."""

    def __init__(self, inner: CscGraph, monkeypatch: pytest.MonkeyPatch) -> None:
        self.schema = inner.schema
        self.num_nodes = inner.num_nodes
        self.drawing: list[tuple[float, float]] = []
        self.inserting: list[tuple[float, float]] = []
        self.sample_hop = self._noting(inner.sample_hop, self.drawing)
        monkeypatch.setattr(NodeIndex, "insert", self._noting(NodeIndex.insert, self.inserting))

    @staticmethod
    def _noting(function: Callable[..., object], spans: list[tuple[float, float]]) -> Callable[..., object]:
        def noting(*arguments: object) -> object:
            begun = time.perf_counter()
            result = function(*arguments)
            spans.append((begun, time.perf_counter()))
            return result

        return noting


def test_while_two_threads_sample_a_python_loop_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In most long calls of the core it never rests for half the call; with the GIL held, it would in all."""
    graph = Watched(ring(200_000, 64), monkeypatch)
    sampler = NeighborSampler(graph, [40, -1])

    def samples(start: int) -> None:
        sampler.sample(seeds(*range(start, 200_000, 20)), KEY)

    threads = [threading.Thread(target=samples, args=(start,)) for start in range(2)]
    for thread in threads:
        thread.start()
    turns = [time.perf_counter()]
    while any(thread.is_alive() for thread in threads):
        turns.append(time.perf_counter())
    for spans in (graph.drawing, graph.inserting):
        long = [(begun, ended) for begun, ended in spans if ended - begun > 0.03]
        assert len(long) >= 2
        assert sum(longest_rest(turns, *span) < (span[1] - span[0]) / 2 for span in long) >= len(long) / 2


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
        ({("node", "by", "node"): 3}, "not an edge type; there are"),
    ],
)
def test_a_wrong_fanout_is_named(fanout: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborSampler(ring(10, 2), [5, fanout])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"node": torch.tensor([3, 10])}, "seeds of 'node': there is no node 10; ids go from 0 to 9"),
        ({"node": torch.tensor([-1])}, "there is no node -1"),
        ({"user": torch.tensor([1])}, "seeds of 'user': not a node type"),
        ({"node": torch.tensor([0.5])}, "torch.float32"),
        ({"node": torch.tensor([[1]])}, r"shape \(1, 1\)"),
    ],
)
def test_seeds_that_are_not_nodes_are_named(nodes: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborSampler(ring(10, 2), [2]).sample(Seeds(nodes, {}), KEY)


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
