"""Stores are copied to where their plan keeps them, and a failed allocation leads to the next plan.

Columns of a folder are mapped, copied or read from disk, by request or by what fits.
"""

from __future__ import annotations

from pathlib import Path
from weakref import ReferenceType, ref

import pytest
import torch

from khop import DrawKey, NeighborSampler, Temporal, Weighted, open_graph
from khop.graph.build import write_graph
from khop.graph.features.row_cache import DiskTable
from khop.graph.features.table import FeatureTable
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.store import CscGraph
from khop.graph.tables import NodeTable
from khop.loading.device.device_memory import DeviceMemory, MachineRanks, SharedPins, shared_pins
from khop.loading.device.device_placement import DevicePlacement, StorePlace
from khop.loading.device.memory_plan import GIB, FreeMemory
from khop.loading.device.placed_stores import (
    Columns,
    Conditions,
    PlacedStores,
    folder_features,
    placed_stores,
    store_sizes,
)
from khop.sampling.seeds import Seeds
from support.host_as_device import HostAsDevice
from support.small_typed_folders import write_typed_graph

MAPPED_FILES = Conditions(is_mapped=True)
DEVICE, SHARDED, PINNED, HOST, MAPPED, DISK = StorePlace


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[CscGraph, Columns]:
    graph = open_graph(write_typed_graph(tmp_path_factory.mktemp("graph") / "g", renumbered=True))
    assert isinstance(graph.topology, CscGraph)
    return graph.topology, graph.columns


def placed(
    shop: tuple[CscGraph, Columns],
    request: DevicePlacement,
    memory: HostAsDevice | None = None,
    conditions: Conditions = MAPPED_FILES,
) -> tuple[PlacedStores, str]:
    stores = placed_stores(*shop, request, memory or HostAsDevice(), conditions)
    return stores, stores.line


def test_all_is_copied_where_there_is_room(shop: tuple[CscGraph, Columns]) -> None:
    (stores, line), (edges, columns) = placed(shop, DevicePlacement.of()), shop
    assert stores.edges is not None
    for edge_type, csc in stores.edges.edges.items():
        assert torch.equal(csc.indices, edges.csc(edge_type).indices)
        assert csc.indices.data_ptr() != edges.csc(edge_type).indices.data_ptr()
    for node_type in edges.schema.node_types:
        for name, column in columns.get(node_type, {}).items():
            assert stores.reads(name)
            assert torch.equal(stores.columns[node_type][name], column)
    assert line.endswith("; as much on the card as fits")


def test_the_sizes_are_what_the_copies_take(shop: tuple[CscGraph, Columns]) -> None:
    memory = HostAsDevice()
    stores, _ = placed(shop, DevicePlacement.of("cuda", "pinned", "device"), memory)
    of_nodes = {t: shop[1][t] for t in shop[0].schema.node_types if t in shop[1]}
    sizes = store_sizes(shop[0], of_nodes, MAPPED_FILES)
    assert memory.taken == {PINNED: sizes.topology, DEVICE: sum(sizes.columns.values())}
    assert (stores.plan.pinned_bytes, stores.plan.topology) == (sizes.topology, PINNED)


@pytest.mark.parametrize("rule", [None, Weighted("weight"), Temporal("time")])
def test_draws_from_copies_are_those_of_the_graph(
    shop: tuple[CscGraph, Columns], rule: Weighted | Temporal | None
) -> None:
    stores, _ = placed(shop, DevicePlacement.of(topology="device"))
    assert stores.edges is not None
    seeds = Seeds(
        {"item": torch.arange(50)},
        {"item": torch.arange(50)},
        {"item": torch.full((50,), 7000)} if isinstance(rule, Temporal) else None,
    )
    settings = {} if rule is None else {"rule": rule}
    ours, theirs = (
        NeighborSampler(graph, [3, 2], **settings).sample(seeds, DrawKey(5))  # type: ignore[arg-type]
        for graph in (stores.edges, shop[0])
    )
    assert all(torch.equal(ours.nodes[t], theirs.nodes[t]) for t in theirs.nodes)
    assert theirs.nodes["user"].numel() > 50


def test_a_failed_allocation_leads_to_the_next_plan(shop: tuple[CscGraph, Columns]) -> None:
    columns = shop[1]
    sizes = store_sizes(
        shop[0], {t: columns[t] for t in shop[0].schema.node_types if t in columns}, MAPPED_FILES
    )
    memory = HostAsDevice(most={DEVICE: sizes.topology})
    stores, line = placed(shop, DevicePlacement.of(), memory)
    assert (stores.plan.topology, set(stores.plan.columns.values())) == (DEVICE, {PINNED})
    assert "; a larger placement failed: out of memory: " in line
    assert "\n" not in line
    memory = HostAsDevice(most={DEVICE: 0, PINNED: 0})
    stores, line = placed(shop, DevicePlacement.of(), memory)
    assert (stores.plan.topology, set(stores.plan.columns.values())) == (HOST, {MAPPED})
    assert stores.edges is None
    assert "could not be pinned" in line


def test_a_requested_store_that_cannot_be_allocated_is_an_error(shop: tuple[CscGraph, Columns]) -> None:
    with pytest.raises(ValueError, match=r'could not be allocated; .*out of memory: .*"pinned", "host"'):
        placed(shop, DevicePlacement.of(topology="device"), HostAsDevice(most={DEVICE: 10}))
    with pytest.raises(ValueError, match=r'topology "device": .* are needed on cuda'):
        placed(shop, DevicePlacement.of(topology="device"), HostAsDevice(said=FreeMemory(10, 1 << 40)))


def test_without_kernels_the_cpu_works_unless_a_placement_is_requested(
    shop: tuple[CscGraph, Columns],
) -> None:
    old = Conditions(no_kernels="compute capability 7.5, and 8.0 (A100) is the least")
    stores, line = placed(shop, DevicePlacement.of(), conditions=old)
    assert stores.edges is None
    assert "the CPU draws and gathers: compute capability 7.5" in line
    with pytest.raises(
        ValueError, match=r'kernels cannot make the batches: compute capability 7.5.*columns="host"'
    ):
        placed(shop, DevicePlacement.of(columns="device"), conditions=old)


def test_files_are_asked_for_where_there_are_some(shop: tuple[CscGraph, Columns]) -> None:
    in_memory = Conditions(is_mapped=False)
    for place in (MAPPED, DISK):
        with pytest.raises(ValueError, match=f'"{place}": the graph is in memory, not in a folder'):
            placed(shop, DevicePlacement.of(columns=place), conditions=in_memory)


def test_damaged_edges_are_not_placed(tmp_path: Path) -> None:
    """Kernels follow them without a check."""
    graph = open_graph(write_typed_graph(tmp_path / "g"))
    assert isinstance(graph.topology, CscGraph)
    edge_type = graph.schema.edge_types[0]
    graph.topology.csc(edge_type).indices[3] = 10**6  # a private copy of the page
    with pytest.raises(ValueError, match=r"source id 1000000: must be in \[0, "):
        placed((graph.topology, graph.columns), DevicePlacement.of(topology="device"))


ROWS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> GraphFolder:
    columns = {"x": torch.rand(ROWS, 8), "y": torch.arange(ROWS)}
    return open_folder(write_graph(tmp_path / "g", {"a": NodeTable(columns=columns)}, {}))


def files(folder: GraphFolder, places: dict[str, StorePlace], room_bytes: int) -> list[str]:
    found = folder_features(folder, places, room_bytes)
    return sorted(found.files["a"]) if isinstance(found, DiskTable) else []


def test_the_largest_columns_are_read_from_disk_where_memory_does_not_hold_all(folder: GraphFolder) -> None:
    x_bytes, y_bytes = ROWS * 8 * 4, ROWS * 8
    assert files(folder, {}, x_bytes + y_bytes) == []
    assert files(folder, {}, x_bytes + y_bytes - 1) == ["x"]
    assert files(folder, {}, y_bytes - 1) == ["x", "y"]


def test_a_request_goes_before_what_fits(folder: GraphFolder) -> None:
    assert files(folder, {"y": StorePlace.DISK}, 1 << 30) == ["y"]
    assert files(folder, {"x": StorePlace.MAPPED}, 0) == ["y"]
    assert files(folder, {"x": StorePlace.HOST, "y": StorePlace.MAPPED}, 0) == []


def test_columns_in_memory_are_copies(folder: GraphFolder) -> None:
    copied, mapped = folder_features(folder, {"x": StorePlace.HOST}), folder_features(folder)
    assert isinstance(copied, FeatureTable)
    assert isinstance(mapped, FeatureTable)
    for name, is_copied in (("x", True), ("y", False)):
        ours, theirs = copied.columns["a"][name], mapped.columns["a"][name]
        assert torch.equal(ours, theirs)
        assert (ours.data_ptr() != theirs.data_ptr()) == is_copied


def test_pinned_memory_of_a_plan_that_failed_is_freed_before_the_next(
    shop: tuple[CscGraph, Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the host needs room for both."""
    blocks: list[ReferenceType[SharedPins]] = []
    alive: list[bool] = []

    def noted(inner: DeviceMemory, num_bytes: int, stores: int, machine: MachineRanks) -> SharedPins | None:
        alive.extend(block() is not None for block in blocks)
        made = shared_pins(inner, num_bytes, stores, machine)
        blocks.extend([ref(made)] if made is not None else [])
        return made

    monkeypatch.setattr("khop.loading.device.placed_stores.shared_pins", noted)
    free = FreeMemory((GIB >> 1) + 200_000, 1 << 34)
    memory = HostAsDevice(most={DEVICE: 1000}, said=free)
    machine = MachineRanks(0, 1, lambda text: [text])
    stores = placed_stores(*shop, DevicePlacement.of("cuda"), memory, Conditions(), machine)
    assert "a larger placement failed" in stores.line
    assert alive
    assert not any(alive)
