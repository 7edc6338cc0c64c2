"""Columns that kernels of a device gather are those that the CPU gathers, beside the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop.features.store import Rows
from khop.graph.csc_graph import CscGraph
from khop.kernels.choice import Engine, forcing
from khop.loading.deferred_columns import Gather, split_deferred
from khop.loading.device_columns import DeviceColumns, split_choice
from khop.loading.device_placement import DevicePlacement
from khop.loading.placed_stores import Conditions, PlacedStores, placed_stores
from khop.testing.batch_source import GRAPH, local, requests
from support.host_as_device import HostAsDevice


def stores_of(columns: object) -> PlacedStores:
    assert isinstance(GRAPH.topology, CscGraph)
    request = DevicePlacement.of("cuda", "device", columns)  # type: ignore[arg-type]
    return placed_stores(GRAPH.topology, GRAPH.columns, request, HostAsDevice(), Conditions())


@pytest.mark.parametrize("place", ["device", "pinned"])
def test_columns_say_if_they_are_in_memory_of_the_host(place: str) -> None:
    """So that few programs of the GPU read them."""
    stores, choice = stores_of({"x": place, "age": "device", "price": "device"}), local().columns
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
    stores, source = stores_of(columns), local()
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
