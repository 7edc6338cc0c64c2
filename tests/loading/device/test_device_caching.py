"""Caches on a device: the most needed rows of each column, within the bytes of its cache.

Counts of cached rows are those of the batch, on the host and on the device.

Columns that kernels of a device gather are those that the CPU gathers, beside the others.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop.graph.features.store import Rows
from khop.graph.store import CscGraph
from khop.kernels.choice import Engine, forcing
from khop.kernels.gather import Copies
from khop.loading.columns import Gather, split_deferred
from khop.loading.device.device_caching import (
    DeviceColumns,
    SlotCounts,
    counts_of_host,
    nodes_in_cache,
    pinned_copies,
    rows_of_host,
    split_choice,
    visits_of,
)
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.device_source import DeviceSource
from khop.loading.device.placed_stores import Conditions, PlacedStores, placed_stores
from khop.loading.device.transfer import Transfer
from khop.loading.local_source import LocalSource
from khop.loading.source import StepRequests
from khop.sampling.links.links import LinkSampler
from khop.testing.batch_source import GRAPH, ORDER, local, requests
from support.delaying_streams import PromptStreams
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


USER = ("user", "x")


def copies(*cached: int) -> dict[tuple[str, str], Copies]:
    slots = torch.full((6,), -1, dtype=torch.int32)
    slots[list(cached)] = torch.arange(len(cached), dtype=torch.int32)
    return {USER: Copies(slots, torch.zeros(len(cached), 2))}


def test_only_nodes_in_use_count() -> None:
    counts = SlotCounts(copies(1, 4), torch.device("cpu"))
    nodes = {"user": torch.tensor([4, 0, 1, 1])}  # the last one is of an earlier batch
    counts.write(nodes, {"user": torch.tensor([3], dtype=torch.int32)})
    assert counts.counts() == {"needed_rows": 3, "device_cache_rows": 2}
    counts.write(nodes, {"user": torch.tensor([2], dtype=torch.int32)})
    assert counts.counts() == {"needed_rows": 2, "device_cache_rows": 1}


def test_without_a_cache_there_are_no_counts() -> None:
    counts = SlotCounts({}, torch.device("cpu"))
    counts.write({}, {})
    assert counts.counts() == {}
    assert local().draw(requests()[2]).traffic == {}


def test_the_host_counts_the_same() -> None:
    nodes = {"user": torch.tensor([4, 0, 1])}
    found = counts_of_host(nodes, {}, nodes_in_cache(copies(1, 4)))
    assert found == {"needed_rows": 3, "device_cache_rows": 2}


def source(columns: str) -> tuple[LocalSource, PlacedStores]:
    """A source of the CPU with most of the columns cached, which are in pinned or in host memory."""
    assert isinstance(GRAPH.topology, CscGraph)
    request = DevicePlacement.of("cuda", "device", columns, "60%")
    stores = placed_stores(GRAPH.topology, GRAPH.columns, request, HostAsDevice(), Conditions())
    host = local()
    of_host, of_device = split_choice(host.columns, stores)
    visits = visits_of(host.sampler, ORDER, GRAPH.topology)
    if columns == "host":
        assert host.features is not None
        cached = rows_of_host(stores, GRAPH.topology, of_host, host.features, visits)
        return replace(host, on_device=cached), stores
    found = pinned_copies(stores, GRAPH.topology, of_device, visits)
    added = DeviceColumns(stores, GRAPH.schema, of_device, found)
    transfer = Transfer(PromptStreams())
    return replace(host, features=None, columns=of_host, transfer=transfer, device_columns=added), stores


def test_rows_of_host_columns_count() -> None:
    drawn = source("host")[0].draw(requests()[2])
    cached = sum(rows.rows.numel() for rows in drawn.cached_rows.values())
    assert 0 < drawn.traffic["device_cache_rows"] == cached < drawn.traffic["needed_rows"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU has no kernels beside a GPU")
@pytest.mark.parametrize("columns", ["pinned", "host"])
def test_a_device_that_samples_counts_what_the_cpu_counts(columns: str) -> None:
    with forcing(Engine.TORCH):
        (host, stores), request = source(columns), requests()[2]
        by_cpu = host.draw(request)
        wanted = by_cpu.traffic
        first = [(each.seeds(), each.key) for each in StepRequests(ORDER, 1, range(4))]
        made = DeviceSource(host, stores, PromptStreams(), lambda: first)
        made.prepare()
        drawn = made.make(request)
        assert drawn.traffic == wanted
        for node_type, rows in by_cpu.cached_rows.items():  # which are not copied
            assert torch.equal(drawn.cached_rows[node_type].others, rows.others)
            of_type = drawn.columns[node_type].values()
            assert {column.shape[0] for column in of_type} == {rows.others.numel()}
    assert 0 < wanted["device_cache_rows"] < wanted["needed_rows"]


def device_columns_stores_of(columns: object) -> PlacedStores:
    assert isinstance(GRAPH.topology, CscGraph)
    request = DevicePlacement.of("cuda", "device", columns)  # type: ignore[arg-type]
    return placed_stores(GRAPH.topology, GRAPH.columns, request, HostAsDevice(), Conditions())


@pytest.mark.parametrize("place", ["device", "pinned"])
def test_columns_say_if_they_are_in_memory_of_the_host(place: str) -> None:
    """So that few programs of the GPU read them."""
    stores, choice = (
        device_columns_stores_of({"x": place, "age": "device", "price": "device"}),
        local().columns,
    )
    table = stores.features(GRAPH.schema)
    found = {
        name: table.column(node_type, name, Rows(torch.empty(0), names)).is_pinned
        for node_type, names in choice.of_nodes.items()
        for name in names
    }
    assert found == {"x": place == "pinned", "price": False}
    for deferred in (True, False):
        gather = Gather.DEFERRED if deferred else Gather.AHEAD
        ahead, later = split_deferred(choice, gather, GRAPH.features, stores, torch.device("cpu"))
        assert ("x" in ahead.of_nodes.get("user", ())) == (place == "pinned" or not deferred), later


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels cannot run on the CPU beside a GPU")
@pytest.mark.parametrize(
    "columns",
    [
        "device",
        {"x": "device", "age": "host", "price": "host"},
        {"x": "pinned", "age": "device", "price": "host"},
    ],
    ids=["device", "x device", "x pinned"],
)
def test_both_parts_of_a_choice_make_the_batch_of_the_cpu(columns: object) -> None:
    stores, source = device_columns_stores_of(columns), local()
    of_host, of_device = split_choice(source.columns, stores)
    assert not of_device.of_edges
    for node_type, names in source.columns.of_nodes.items():
        parts = (of_host.of_nodes.get(node_type, ()), of_device.of_nodes.get(node_type, ()))
        assert sorted([*parts[0], *parts[1]]) == sorted(names)
        assert all(stores.reads(name) for name in parts[1])
    added = DeviceColumns(stores, GRAPH.schema, of_device, {})
    request = requests()[1]
    with forcing(Engine.TORCH):
        found = added.add(replace(source, columns=of_host).draw(request))
    expected = source.draw(request)
    for own, of_cpu in ((found.columns, expected.columns), (found.seed_columns, expected.seed_columns)):
        assert {t: set(columns) for t, columns in own.items()} == {t: set(of) for t, of in of_cpu.items()}
        for node_type, columns in of_cpu.items():
            for name, column in columns.items():
                assert torch.equal(own[node_type][name], column)


def test_without_copies_the_cpu_gathers_all() -> None:
    none = PlacedStores.none(DevicePlacement.of("cuda"), Conditions().work, torch.device("cpu"))
    of_host, of_device = split_choice(local().columns, none)
    assert of_host.of_nodes == local().columns.of_nodes
    assert of_device.of_nodes == of_device.of_seeds == {}
