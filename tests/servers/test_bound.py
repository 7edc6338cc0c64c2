"""No batch is larger than its limit, which is known before any work."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.batch import num_bytes
from khop.loading.source import BatchRequest
from khop.servers.bound import DrawnEnds, label_bytes, most_bytes, seed_counts
from support.batch_kinds import PLAIN, TYPED


@pytest.mark.parametrize("kind", [*PLAIN, *TYPED], ids=lambda kind: kind.__name__)
def test_no_batch_is_larger_than_its_limit(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: object
) -> None:
    loader = kind(plain_graph if kind in PLAIN else typed_graph)  # type: ignore[operator]
    source, order = loader._batches.source, loader._order
    negatives = DrawnEnds.of(loader.graph_sampler)
    for step in range(order.num_steps):
        seeds = order.share(0, step)
        drawn = source.make(BatchRequest.of(seeds, khop.DrawKey(step)))
        limit = most_bytes(
            loader.graph_sampler,
            loader.columns,
            seed_counts(seeds, negatives),
            label_bytes(seeds, negatives),
            seeds.nodes,
        )
        assert limit is not None
        assert num_bytes(drawn) <= limit


def test_limits_of_shared_nodes_end_at_the_graph(plain_graph: khop.Graph) -> None:
    def limit(fanouts: list[int]) -> int:
        sampler = khop.NeighborSampler(plain_graph, fanouts)
        found = most_bytes(sampler, khop.Loader(sampler, torch.arange(2), 2).columns, {"item": 100})
        assert found is not None
        return found

    edges, nodes = 4 * 4091, 600 * 8
    assert limit([-1]) <= edges + nodes + 8 * 101 + 100 * 48
    assert limit([1000, 1000]) > limit([10, 10]) > limit([10])


def test_all_neighbors_of_known_seeds_are_counted(plain_graph: khop.Graph) -> None:
    sampler = khop.NeighborSampler(plain_graph, [-1])
    columns = khop.Loader(sampler, torch.arange(2), 2).columns
    one = most_bytes(sampler, columns, {"item": 1}, nodes={"item": torch.tensor([5])})
    degree = int(plain_graph.csc("item like item").indptr.diff()[5])
    assert one == 4 * degree + 8 * 2 + 8 * (1 + degree) + 48
    unknown = {"item": torch.tensor([5, -1, 600])}  # the draw refuses these ids
    assert most_bytes(sampler, columns, {"item": 1}, nodes=unknown) == one


def test_a_sampler_of_your_own_has_no_limit(plain_graph: khop.Graph) -> None:
    class Own(khop.SamplerBase):
        def sample(self, seeds: khop.Seeds, key: khop.DrawKey) -> khop.Sample:
            raise AssertionError

    loader = khop.Loader(khop.NeighborSampler(plain_graph, [1]), torch.arange(2), 2)
    assert most_bytes(Own(plain_graph), loader.columns, {"item": 1}) is None
