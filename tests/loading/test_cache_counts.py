"""Counts of cached rows are those of the batch, on the host and on the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop.graph.csc_graph import CscGraph
from khop.kernels.choice import Engine, forcing
from khop.kernels.gather import Copies
from khop.loading.cache_counts import SlotCounts, counts_of_host, nodes_in_cache
from khop.loading.device_caching import pinned_copies, rows_of_host, visits_of
from khop.loading.device_columns import DeviceColumns, split_choice
from khop.loading.device_placement import DevicePlacement
from khop.loading.device_source import DeviceSource
from khop.loading.local_source import LocalSource
from khop.loading.placed_stores import Conditions, placed_stores
from khop.loading.source import StepRequests
from khop.loading.transfer import Transfer
from khop.testing.batch_source import GRAPH, ORDER, local, requests
from support.delaying_streams import PromptStreams
from support.host_as_device import HostAsDevice

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


def source(columns: str) -> LocalSource:
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
        return replace(host, on_device=cached)
    found = pinned_copies(stores, GRAPH.topology, of_device, visits)
    added = DeviceColumns(stores, GRAPH.schema, of_device, found)
    transfer = Transfer(PromptStreams())
    return replace(host, features=None, columns=of_host, transfer=transfer, device_columns=added)


def test_rows_of_host_columns_count() -> None:
    drawn = source("host").draw(requests()[2])
    cached = sum(rows.rows.numel() for rows in drawn.cached_rows.values())
    assert 0 < drawn.traffic["device_cache_rows"] == cached < drawn.traffic["needed_rows"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU has no kernels beside a GPU")
def test_a_device_that_samples_counts_what_the_cpu_counts() -> None:
    with forcing(Engine.TORCH):
        host, request = source("pinned"), requests()[2]
        wanted = host.draw(request).traffic
        first = [(each.seeds(), each.key) for each in StepRequests(ORDER, 1, range(4))]
        assert host.device_columns is not None
        made = DeviceSource(host, host.device_columns.stores, PromptStreams(), lambda: first)
        made.prepare()
        assert made.make(request).traffic == wanted
    assert 0 < wanted["device_cache_rows"] < wanted["needed_rows"]
