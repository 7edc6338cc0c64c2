"""What every sampler promises; used as contracts/graph_store.py says, with a sampler of any store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given

from khop import DrawKey, Sample, Sampler, Seeds
from khop.draw import FrontierByType, NeighborsByType
from khop.graph.store import GraphStore, GraphStoreBase
from khop.rules.rule import Hop
from khop.schema import NodeType
from reference.hops import PlainGraph, as_plain
from support.random_graphs import as_seeds, graphs_and_seeds, ring, seeds

KEY = DrawKey(11)

Make = Callable[[GraphStore], Sampler]  # of two layers, with edge ids


def a_sample_is_a_function_of_seeds_and_key(make: Make) -> None:
    graph = ring(1000, 40)
    first = as_plain(make(graph).sample(seeds(3, 500), KEY))
    assert as_plain(make(graph).sample(seeds(3, 500), KEY)) == first
    assert as_plain(make(graph).sample(seeds(3, 500), KEY.plus(1))) != first


def threads_may_share_it(make: Make) -> None:
    sampler = make(ring(5000, 12))
    asked = [seeds(*range(start, start + 40)) for start in range(0, 800, 40)] * 5
    expected = [as_plain(sampler.sample(of_batch, KEY)) for of_batch in asked]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda of_batch: as_plain(sampler.sample(of_batch, KEY)), asked)) == expected


def duplicate_seeds_share_a_row(make: Make) -> None:
    sample = make(ring(10, 2)).sample(seeds(7, 3, 7, 7), KEY)
    assert sample.seed_index["node"].tolist() == [0, 1, 0, 0]
    assert sample.seed_index["node"].dtype == torch.int64
    assert sample.blocks[-1].num_dst == 2


def blocks_lead_from_all_nodes_to_the_seeds(make: Make) -> None:
    @given(graphs_and_seeds())
    def check(asked: tuple[PlainGraph, dict[str, list[int]]]) -> None:
        graph, nodes = asked
        sample = make(graph.opened()).sample(as_seeds(nodes), KEY)
        assert all(ids.unique().numel() == ids.numel() for ids in sample.nodes.values())
        assert sample.blocks[0].src_counts == {t: ids.numel() for t, ids in sample.nodes.items()}
        assert sample.blocks[-1].dst_counts == {t: len(set(nodes.get(t, []))) for t in graph.counts}
        assert all(outer.dst_counts == inner.src_counts for outer, inner in pairwise(sample.blocks))
        for node_type, ids in nodes.items():
            assert sample.nodes[node_type][sample.seed_index[node_type]].tolist() == ids

    check()


def edges_are_edges_of_the_graph(make: Make) -> None:
    @given(graphs_and_seeds())
    def check(asked: tuple[PlainGraph, dict[str, list[int]]]) -> None:
        graph, nodes = asked
        sample = make(graph.opened()).sample(as_seeds(nodes), KEY)
        for block in sample.blocks:
            for edge_type, adjacency in block.adjacencies.items():
                by_position = sorted(graph.edges[edge_type], key=lambda pair: pair[1])
                source, destination = adjacency.edge_index
                ends = zip(
                    sample.nodes[edge_type[0]][source].tolist(),
                    sample.nodes[edge_type[2]][destination].tolist(),
                    strict=True,
                )
                assert list(ends) == [by_position[edge] for edge in adjacency.edge_ids.tolist()]

    check()


class FailsOnce(GraphStoreBase):
    """A store that fails at the second hop that it is asked for."""

    def __init__(self, inner: GraphStore) -> None:
        self.schema = inner.schema
        self._inner = inner
        self._calls = 0

    def num_nodes(self, node_type: NodeType) -> int:
        return self._inner.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        self._calls += 1
        if self._calls == 2:
            raise OSError("the disk is gone")
        return self._inner.sample_hop(frontier, hop, key)


def a_failed_sample_leaves_no_trace_in_the_next(make: Make) -> None:
    sampler = make(FailsOnce(ring(10, 2)))
    with pytest.raises(OSError, match="disk is gone"):
        sampler.sample(seeds(0), KEY)
    assert as_plain(sampler.sample(seeds(5), KEY)) == as_plain(make(ring(10, 2)).sample(seeds(5), KEY))


def no_seeds_give_no_nodes(make: Make) -> None:
    sample: Sample = make(ring(10, 2)).sample(seeds(), KEY)
    assert sample.nodes["node"].tolist() == []
    assert [block.adjacency.indptr.tolist() for block in sample.blocks] == [[0], [0]]


def seeds_that_are_not_nodes_are_named(make: Make) -> None:
    wrong = {
        "seeds of 'node': there is no node 10; ids go from 0 to 9": {"node": torch.tensor([3, 10])},
        "there is no node -1": {"node": torch.tensor([-1])},
        "seeds of 'user': not a node type": {"user": torch.tensor([1])},
        "a list; give a 1-D int64 tensor": {"node": [1, 2]},
        "torch.float32": {"node": torch.tensor([0.5])},
        r"shape \(1, 1\)": {"node": torch.tensor([[1]])},
    }
    for message, nodes in wrong.items():
        with pytest.raises(ValueError, match=message):
            make(ring(10, 2)).sample(Seeds(nodes, {}), KEY)


PROMISES: tuple[Callable[[Make], None], ...] = (
    a_sample_is_a_function_of_seeds_and_key,
    threads_may_share_it,
    duplicate_seeds_share_a_row,
    blocks_lead_from_all_nodes_to_the_seeds,
    edges_are_edges_of_the_graph,
    a_failed_sample_leaves_no_trace_in_the_next,
    no_seeds_give_no_nodes,
    seeds_that_are_not_nodes_are_named,
)
