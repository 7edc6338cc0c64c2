"""Columns of a partitioned graph are placed for ranks; tests/processes has batches of several ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import khop
from khop.api.open_graph import PartsTarget, placed_on, placed_parts
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.processes.group import ALONE
from khop.graph.features.store import Rows
from khop.graph.partitions.local_partitions import joined_graph
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.graph.store import CscGraph
from khop.loading.device.device_placement import DevicePlacement, StorePlace
from khop.loading.device.memory_plan import GIB, FreeMemory, WorkSizes
from support.host_as_device import HostAsDevice
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PartsFolder:
    home = tmp_path_factory.mktemp("parts")
    khop.partition_graph(write_typed_graph(home / "whole"), home / "parts", parts=3)
    return open_parts(home / "parts")


def target(
    *,
    memory: HostAsDevice | None,
    no_kernels: str | None = None,
    edges: Callable[[], CscGraph] | None = None,
) -> PartsTarget:
    return PartsTarget(Lanes(ALONE, 1), Wire.STORED, memory, no_kernels, WorkSizes(), edges)


def test_rows_of_this_rank_are_on_the_gpu_and_other_columns_on_the_host(folder: PartsFolder) -> None:
    memory = HostAsDevice()
    request = DevicePlacement.of("cuda", columns={"x": "pinned", "age": "mapped"})
    stores, features, rows = placed_parts(folder, request, target(memory=memory))
    assert rows is not None
    assert features is rows.features
    assert {t: list(of_type) for t, of_type in rows.columns.items()} == {"user": ["x"]}
    every = Rows(torch.arange(300), ("x", "age"))
    gathered = features.gather({"user": every})["user"]
    assert torch.equal(rows.columns["user"]["x"], gathered["x"])
    assert stores.reads("x")
    assert not stores.reads("age")
    assert stores.edges is None
    assert sum(memory.taken.values()) == 300 * 3 * 2


def test_without_columns_on_the_gpu_all_stays_on_the_host(folder: PartsFolder) -> None:
    stores, features, rows = placed_parts(folder, DevicePlacement.of("cuda"), target(memory=HostAsDevice()))
    assert (features, rows, stores.edges) == (None, None, None)
    request = DevicePlacement.of("cpu", columns="disk")
    stores, features, rows = placed_parts(folder, request, target(memory=None))
    assert features is not None
    assert rows is None
    assert stores.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("columns", "no_kernels", "problem"),
    [
        ("sharded", None, 'columns "sharded": each rank of a partitioned graph has a part'),
        ("device", "Triton is not installed", "kernels cannot make the batches: Triton is not installed; or"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(
    folder: PartsFolder, columns: str, no_kernels: str | None, problem: str
) -> None:
    request = DevicePlacement.of("cuda", columns=columns)
    with pytest.raises(ValueError, match=problem):
        placed_parts(folder, request, target(memory=HostAsDevice(), no_kernels=no_kernels))
    cached = DevicePlacement.of("cuda", columns=columns, cache="1kB")
    with pytest.raises(ValueError, match="leave cache out and call `Loader"):
        placed_parts(folder, cached, target(memory=HostAsDevice()))
    with_edges = DevicePlacement.of("cuda", "device", columns)
    with pytest.raises(ValueError, match=r'each rank has a part of the edges.*placement="features"'):
        placed_parts(folder, with_edges, target(memory=HostAsDevice()))
    alone = DevicePlacement.of("cuda", "device")
    with pytest.raises(ValueError, match='give columns "device" or "pinned" as well'):
        placed_parts(folder, alone, target(memory=HostAsDevice(), edges=lambda: joined_graph(folder)))
    with pytest.raises(ValueError, match="the graph is in memory, not in a folder"):
        placed_parts(None, DevicePlacement.of("cuda", columns="device"), target(memory=HostAsDevice()))


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("most", "asked", "place"),
    [
        ({}, "auto", "device"),
        ({StorePlace.DEVICE: 2000}, "auto", "pinned"),
        ({StorePlace.DEVICE: 2000, StorePlace.PINNED: 0}, "auto", "host"),
        ({}, "pinned", "pinned"),
        ({}, "host", "host"),
    ],
)
def test_the_whole_topology_goes_to_the_first_memory_with_room(
    folder: PartsFolder, most: dict[StorePlace, int], asked: str, place: str
) -> None:
    """The rows take 1,800 bytes."""
    request, memory = DevicePlacement.of("cuda", asked, {"x": "device"}), HostAsDevice(most)
    on_gpu = target(memory=memory, edges=lambda: joined_graph(folder))
    stores, _, rows = placed_parts(folder, request, on_gpu)
    assert rows is not None
    assert (stores.plan.topology, stores.edges is not None) == (place, place != "host")
    assert f"topology {place}, columns x device" in stores.line
    assert stores.plan.request == request
    if place == "host":
        assert (memory.taken[StorePlace.DEVICE], memory.taken[StorePlace.PINNED]) == (1800, 0)


def test_a_requested_topology_without_room_is_an_error(folder: PartsFolder) -> None:
    memory = HostAsDevice({StorePlace.DEVICE: 2000})
    on_gpu = target(memory=memory, edges=lambda: joined_graph(folder))
    with pytest.raises(ValueError, match=r"the requested stores could not be allocated; .*: out of memory"):
        placed_parts(folder, DevicePlacement.of("cuda", "device", {"x": "device"}), on_gpu)


LINE = "as much on the cards as fits; exchanges between GPUs are untested"


@pytest.mark.parametrize(
    ("most", "free", "topology", "column"),
    [
        ({}, FreeMemory(1 << 40, 1 << 40), "device", "device"),
        ({}, FreeMemory(GIB // 2 + 41_400, 1 << 40), "device", "pinned"),
        ({StorePlace.DEVICE: 100}, FreeMemory(1 << 40, 1 << 40), "pinned", "pinned"),
    ],
    ids=["all fits", "columns do not fit", "the card is full"],
)
def test_without_a_request_the_gpu_gets_what_fits_where_the_topology_is_whole(
    folder: PartsFolder, most: dict[StorePlace, int], free: FreeMemory, topology: str, column: str
) -> None:
    """The topology takes 37,280 bytes, the numbers of its nodes 4,056, the rows of x 1,800."""
    request, memory = DevicePlacement.of("cuda"), HostAsDevice(most, free)
    on_gpu = target(memory=memory, edges=lambda: joined_graph(folder))
    stores, features, rows = placed_parts(folder, request, on_gpu)
    assert rows is not None
    assert features is rows.features
    assert stores.edges is not None
    assert (stores.plan.topology, stores.plan.columns["x"]) == (topology, column)
    assert ("x" in rows.pinned) is (column == "pinned")
    assert stores.line.startswith(f"rows of this rank on cuda: topology {topology}, columns ")
    assert stores.line.endswith(LINE)
    assert stores.plan.request == request


def test_without_a_request_the_cpu_makes_the_batches_for_a_reason_that_is_said(folder: PartsFolder) -> None:
    def joined() -> CscGraph:
        return joined_graph(folder)

    no_room = HostAsDevice({StorePlace.DEVICE: 0, StorePlace.PINNED: 0})
    for asked, given, why in (
        (DevicePlacement.of("cuda"), target(memory=HostAsDevice()), "each rank has a part of the edges"),
        (DevicePlacement.of("cuda", "host"), target(memory=HostAsDevice(), edges=joined), "as requested"),
        (
            DevicePlacement.of("cuda"),
            target(memory=HostAsDevice(), no_kernels="no compiler", edges=joined),
            "no compiler",
        ),
        (
            DevicePlacement.of("cuda"),
            target(memory=no_room, edges=joined),
            "the columns of a rank do not fit on its card, or in memory that it may pin",
        ),
    ):
        stores, features, rows = placed_parts(folder, asked, given)
        assert (features, rows, stores.edges) == (None, None, None)
        assert stores.line == f"cuda: the CPU samples and gathers: {why}"


@pytest.mark.parametrize("leave", [None, "only requested stores of training edges are placed"])
def test_one_process_with_all_partitions_places_them_as_those_of_a_whole_graph(
    folder: PartsFolder, monkeypatch: pytest.MonkeyPatch, leave: str | None
) -> None:
    monkeypatch.setattr("khop.api.open_graph.memory_of", lambda device: HostAsDevice())
    monkeypatch.setattr("khop.api.open_graph.why_no_batches", lambda device: None)
    graph = khop.open_graph(folder.path)
    placed = placed_on(graph, DevicePlacement.of("cuda"), WorkSizes(), leave)
    assert placed.stores is not None
    assert (placed.stores.edges is None) is (leave is not None)
    assert placed.stores.reads("x") is (leave is None)
    said = "; as much on the card as fits" if leave is None else f"cuda: the CPU samples and gathers: {leave}"
    assert placed.placement.endswith(said)
    monkeypatch.setattr("khop.api.open_graph.free_memory_bytes", lambda: 1000)
    few = placed_on(graph, DevicePlacement.of("cuda"), WorkSizes())
    assert few.stores is not None
    assert few.stores.edges is None
    assert "are not joined in 0.00 MB" in few.placement
