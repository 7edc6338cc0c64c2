"""Capacities are the largest counts of the measured batches with slack, and survive a checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from khop import DrawKey, Expansion, NeighborSampler
from khop.sampling.on_device.capacities import Capacities
from khop.sampling.on_device.device_sampler import measured_capacities
from support.random_graphs import EDGE, as_seeds, ring

EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
WARM_UP = [(as_seeds({"node": nodes}), DrawKey(1)) for nodes in ([0, 100], [0, 100, 200, 300])]


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


def test_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="sample a few batches first"):
        Capacities.measured([], {}, ["node"], Expansion.LAYERED, [])
