"""Capacities are the room that measured batches need, and survive a checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from khop import DrawKey, Expansion, NeighborSampler
from khop.graph.store import csc_graph_from_edges
from khop.sampling.on_device.capacities import MEASURED, Capacities, room
from khop.sampling.on_device.device_sampler import measured_capacities
from support.random_graphs import EDGE, as_seeds, ring

EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
WARM_UP = [(as_seeds({"node": nodes}), DrawKey(1)) for nodes in ([0, 100, 200, 300], [1, 101, 201, 301])]


def capacities(expansion: Expansion) -> Capacities:
    return measured_capacities(NeighborSampler(ring(400, 3), [3, 3], expansion=expansion), WARM_UP)


@EXPANSIONS
def test_they_are_the_largest_counts_with_slack(expansion: Expansion) -> None:
    """All three in-edges are drawn: 4 seeds reach 12 nodes, and those 12 others; 5 % are added."""
    found = capacities(expansion)
    assert [level["node"] for level in found.nodes] == [4, 17, 30]
    is_layered = expansion is Expansion.LAYERED
    assert [rows["node"] for rows in found.rows] == ([4, 17] if is_layered else [4, 13])


@EXPANSIONS
def test_all_edges_of_the_rows_have_room(expansion: Expansion) -> None:
    """The 4 seeds have 12 edges. Of the 16 or 12 nodes of hop 2, each has 3; 5 % are added."""
    sampler = NeighborSampler(ring(400, 3), [-1, -1], expansion=expansion)
    found = measured_capacities(sampler, WARM_UP)
    assert [of_hop[EDGE] for of_hop in found.edges] == [13, 51 if expansion is Expansion.LAYERED else 38]
    assert measured_capacities(NeighborSampler(ring(400, 3), [3]), WARM_UP).edges == ({},)


def test_a_checkpoint_of_an_earlier_version_has_no_edges() -> None:
    state = capacities(Expansion.LAYERED).state()
    del state["edges"]
    assert Capacities.from_state(state, [EDGE]) == capacities(Expansion.LAYERED)


@EXPANSIONS
def test_a_checkpoint_holds_them(expansion: Expansion) -> None:
    found = replace(capacities(expansion), excluded={EDGE: 7}, edges=({EDGE: 3}, {}))
    state = json.loads(json.dumps(found.state()))
    assert Capacities.from_state(state, [EDGE]) == found
    with pytest.raises(ValueError, match="take the graph of the checkpoint, or measure capacities anew"):
        Capacities.from_state(state, [("node", "of", "node")])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([100], 105),
        ([0, 0], 0),
        ([100, 100, 100], 105),  # they do not differ
        ([90, 110], 157),  # mean 100, deviation 14.1
        ([1000, 1010], 1061),  # mean 1005, deviation 7.1
    ],
    ids=str,
)
def test_room_is_for_the_largest_and_for_the_spread(counts: list[int], expected: int) -> None:
    assert room(counts) == expected


@pytest.mark.core(1)
@EXPANSIONS
@pytest.mark.parametrize("seeds", [8, 32])
def test_few_batches_exceed_the_room_that_others_measured(expansion: Expansion, seeds: int) -> None:
    generator = torch.Generator().manual_seed(1)
    owners = torch.randint(3000, (20_000,), generator=generator) ** 2 // 3000  # some nodes have many edges
    sources = torch.randint(3000, (20_000,), generator=generator)
    sampler = NeighborSampler(
        csc_graph_from_edges({"node": 3000}, {EDGE: (sources, owners)}), [4, 3], expansion=expansion
    )
    batches = [
        (as_seeds({"node": torch.randint(3000, (seeds,), generator=generator).tolist()}), DrawKey(step))
        for step in range(200)
    ]
    found = measured_capacities(sampler, batches[:MEASURED])
    sizes = [[block.num_src for block in sampler.sample(*batch).blocks] for batch in batches[MEASURED:]]
    rooms = [level["node"] for level in reversed(found.nodes[1:])]
    assert sum(any(a > b for a, b in zip(size, rooms, strict=True)) for size in sizes) <= 1


def test_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="sample a few batches first"):
        Capacities.measured([], {}, ["node"], Expansion.LAYERED, [])
