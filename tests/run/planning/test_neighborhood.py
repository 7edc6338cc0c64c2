"""The nodes that a batch is expected to need, against batches that were drawn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Purpose
from khop.graph.added_edges import Topology, visit_probabilities
from khop.graph.build import write_graph
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.tables import EdgeTable, NodeTable
from khop.run.planning.prediction import neighborhood
from khop.run.planning.workload import GraphSize
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import Seeds

PRODUCTS = GraphSize(2_449_029, 122_900_000, 400)
STATED_FACTOR = 4 / 3  # docs/planning.md

NODES, DEGREE, COMMUNITY = 20_000, 12, 200
PARTS, SEEDS, BATCHES, FANOUTS = 4, 60, 10, (6, 5)
NODE = "node"


def write_clustered_graph(path: Path, width: int = 1, train: int = NODES) -> Path:
    """Degrees as of many graphs that grew; of half the edges both ends lie in one community."""
    generator = torch.Generator().manual_seed(11)
    weights = torch.rand(NODES, generator=generator, dtype=torch.float64) ** (-1 / 2.3) - 1
    stubs = torch.multinomial(weights, NODES * DEGREE, replacement=True, generator=generator)
    inside, anywhere = stubs.chunk(2)
    inside = inside[
        (inside // COMMUNITY).argsort(stable=True)
    ]  # neighbors in this order are of one community
    ends = torch.cat([inside, anywhere]).view(-1, 2).T
    shuffled = torch.randperm(NODES, generator=generator)[ends]
    both = torch.cat([shuffled, shuffled.flip(0)], dim=1)
    rest = torch.arange(train, min(train + 40, NODES))
    others = {"val": rest[:20], "test": rest[20:]} if rest.numel() else {}
    table = NodeTable(
        columns={"x": torch.zeros(NODES, width), "category": torch.arange(NODES) % 4},
        splits={"train": torch.arange(train), **others},
        num_classes={"category": 4},
    )
    return write_graph(path, {NODE: table}, {(NODE, "to", NODE): EdgeTable(both[0], both[1])})


def counted(graph: LocalPartitionGraph, part: int) -> tuple[float, float, float]:
    """Nodes of a mean batch of a part's seeds, those of other parts, and of these those not in a cache."""
    begin, end = graph.folder.book.offsets[NODE][part : part + 2]
    own = torch.arange(begin, end)
    chances = visit_probabilities(Topology.of_parts(graph.folder.parts), {NODE: own}, SEEDS, FANOUTS)[NODE]
    chances[begin:end] = 0
    kept = chances.argsort(descending=True)[: (end - begin) // 2]
    sampler, found = NeighborSampler(graph, FANOUTS), torch.zeros(3)
    for step in range(BATCHES):
        seeds = own[torch.randperm(end - begin, generator=torch.Generator().manual_seed(step))[:SEEDS]]
        drawn = Seeds({NODE: seeds}, {NODE: torch.arange(SEEDS)})
        ids = sampler.sample(drawn, DrawKey.of(1, Purpose.HOP, 0, step)).nodes[NODE]
        others = ids[(ids < begin) | (ids >= end)]
        fetched = ~torch.isin(others, kept)
        found += torch.tensor([ids.numel(), others.numel(), int(fetched.sum())]) / BATCHES
    rows, remote, missed = found.tolist()
    return rows, remote, missed


@pytest.mark.core(1)
@pytest.mark.parametrize("method", ["ldg", "random"])
def test_rows_with_and_without_a_cache_are_those_that_batches_need(tmp_path: Path, method: str) -> None:
    source = write_clustered_graph(tmp_path / "graph")
    book = partition_graph(
        source, tmp_path / "parts", PARTS, method=method, fanouts=FANOUTS, batch_size=PARTS * SEEDS
    )
    graph = LocalPartitionGraph(open_parts(tmp_path / "parts"))
    size = GraphSize(NODES, graph.folder.num_edges((NODE, "to", NODE)), 4)
    found = neighborhood(size, FANOUTS, SEEDS, PARTS, book.quality.remote_share)
    fetched = found.remote[-1] - found.others.most_likely(NODES / PARTS / 2)
    of_parts = torch.tensor([counted(graph, part) for part in range(PARTS)])
    for mean, predicted in zip(
        of_parts.mean(0).tolist(), (found.rows, found.remote[-1], fetched), strict=True
    ):
        assert 1 / STATED_FACTOR < predicted / mean < STATED_FACTOR, of_parts


def test_the_remote_share_is_the_one_that_was_asked_for() -> None:
    for share in (0.05, 0.3, 0.6):
        found = neighborhood(PRODUCTS, (15, 10, 5), 1024, 4, share)
        assert found.remote_share == pytest.approx(share, abs=1e-6)
    by_chance = neighborhood(PRODUCTS, (15, 10, 5), 1024, 4, None)
    assert by_chance.remote_share == pytest.approx(0.75, abs=0.005)
    assert neighborhood(PRODUCTS, (15, 10, 5), 1024, 4, 1.0).remote_share == by_chance.remote_share


def test_one_machine_needs_nothing_of_others() -> None:
    found = neighborhood(PRODUCTS, (15, 10, 5), 1024, 1, None)
    assert (found.remote[-1], sum(found.remote_edges), found.others.most_likely(100)) == (0, 0, 0)


fanouts_up_to = st.lists(st.integers(1, 20), min_size=1, max_size=4)


@given(st.integers(1, 10**9), st.integers(0, 200), fanouts_up_to, st.integers(1, 4096), st.integers(1, 64))
def test_larger_fanouts_batches_and_caches_never_give_less(
    nodes: int, degree: int, fanouts: list[int], seeds: int, machines: int
) -> None:
    graph = GraphSize(nodes, nodes * degree, 4)
    found = neighborhood(graph, tuple(fanouts), seeds, machines, None)
    wider = neighborhood(graph, tuple(fanout + 1 for fanout in fanouts), seeds, machines, None)
    more = neighborhood(graph, tuple(fanouts), seeds + 50, machines, None)
    slack = 1 + 1e-9
    assert found.rows <= min(wider.rows, more.rows) * slack
    assert found.edges <= min(wider.edges, more.edges) * slack
    assert found.rows <= nodes * slack
    hits = [found.others.most_likely(nodes * share) for share in (0.0, 0.1, 0.5, 2.0)]
    assert hits[0] == 0
    assert all(less <= more * slack + 1e-9 for less, more in pairwise(hits))
    assert hits[-1] == pytest.approx(found.remote[-1], rel=1e-6, abs=1e-6)


def test_all_neighbors_are_as_many_as_the_graph_has() -> None:
    """Every node hears from some 50: two hops of a batch of all nodes draw every edge twice."""
    graph = GraphSize(1000, 50_000, 4)
    found = neighborhood(graph, (-1, -1), 1000, 1, None)
    assert found.own_edges == pytest.approx((50_000, 50_000))
    assert found.rows == pytest.approx(1000)
