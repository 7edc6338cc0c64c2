"""Caches on a device: the most needed rows of each column, within the bytes of its cache."""

from __future__ import annotations

import pytest
import torch

from khop.graph.csc_graph import CscGraph
from khop.loading.device_caching import pinned_copies, rows_of_host, visits_of
from khop.loading.device_placement import DevicePlacement
from khop.loading.placed_stores import Conditions, PlacedStores, placed_stores
from khop.sampling.links import LinkSampler
from khop.testing.batch_source import GRAPH, ORDER, local
from support.host_as_device import HostAsDevice

TOPOLOGY = GRAPH.topology
assert isinstance(TOPOLOGY, CscGraph)


def stores_of(features: str, cache: object) -> PlacedStores:
    request = DevicePlacement.of("cuda", "host", features, cache)  # type: ignore[arg-type]
    return placed_stores(TOPOLOGY, GRAPH.columns, request, HostAsDevice(), Conditions())


def test_visits_are_probabilities_or_counts_of_an_epoch() -> None:
    source = local()
    known = visits_of(source.sampler, ORDER, TOPOLOGY)
    assert {t: of_type.numel() for t, of_type in known.items()} == {"user": 40, "item": 30}
    assert all(float(of_type.min()) >= 0 and float(of_type.max()) <= 1 for of_type in known.values())
    counted = visits_of(LinkSampler(TOPOLOGY, [2, 2]), ORDER, TOPOLOGY)
    assert float(counted["user"].max()) > 1
    assert float(counted["user"].max()) <= ORDER.num_steps


@pytest.mark.parametrize("share", ["0", "20%", "100%"])
def test_copies_are_the_rows_that_are_needed_most(share: str) -> None:
    stores, source = stores_of("pinned", {"x": share}), local()
    visits = {t: torch.arange(GRAPH.num_nodes(t)).float() for t in ("user", "item")}
    copies = pinned_copies(stores, TOPOLOGY, source.columns, visits)
    assert bool(copies) is (share != "0")
    for (node_type, name), of_column in copies.items():
        table = stores.columns[node_type][name]
        cached = (of_column.slots >= 0).nonzero().flatten()
        assert torch.equal(of_column.rows, table[cached])
        if cached.numel():
            assert int(cached.min()) >= GRAPH.num_nodes(node_type) - cached.numel()  # the last: needed most


@pytest.mark.parametrize(("size", "is_cached"), [("0", False), ("300", True)])
def test_rows_of_the_host_fill_their_budget(size: str, is_cached: bool) -> None:
    source = local()
    assert source.features is not None
    visits = visits_of(source.sampler, ORDER, TOPOLOGY)
    stores = stores_of("host", {"x": size})
    cached = rows_of_host(stores, TOPOLOGY, source.columns, source.features, visits)
    assert (cached is not None) is is_cached
    assert cached is None or cached.num_bytes <= int(size)
