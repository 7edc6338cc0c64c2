"""Columns of a partitioned graph are placed for ranks; tests/processes has batches of several ranks."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.api.open_graph import PartsTarget, placed_parts
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.processes.group import ALONE
from khop.graph.features.store import Rows
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.memory_plan import WorkSizes
from support.host_as_device import HostAsDevice
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PartsFolder:
    home = tmp_path_factory.mktemp("parts")
    khop.partition_graph(write_typed_graph(home / "whole"), home / "parts", parts=3)
    return open_parts(home / "parts")


def target(*, memory: HostAsDevice | None, lanes: bool = True, no_kernels: str | None = None) -> PartsTarget:
    return PartsTarget(Lanes(ALONE, 1) if lanes else None, Wire.STORED, memory, no_kernels, WorkSizes())


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
    ("columns", "lanes", "no_kernels", "problem"),
    [
        ("device", False, None, "all partitions are in this process, so it exchanges no rows"),
        ("sharded", True, None, 'columns "sharded": each rank of a partitioned graph has a part'),
        (
            "device",
            True,
            "Triton is not installed",
            "kernels cannot make the batches: Triton is not installed; or",
        ),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(
    folder: PartsFolder, columns: str, lanes: bool, no_kernels: str | None, problem: str
) -> None:
    request = DevicePlacement.of("cuda", columns=columns)
    with pytest.raises(ValueError, match=problem):
        placed_parts(folder, request, target(memory=HostAsDevice(), lanes=lanes, no_kernels=no_kernels))
    cached = DevicePlacement.of("cuda", columns=columns, cache="1kB")
    with pytest.raises(ValueError, match="edges of a partitioned graph stay in host memory"):
        placed_parts(folder, cached, target(memory=HostAsDevice()))
    with pytest.raises(ValueError, match="the graph is in memory, not in a folder"):
        placed_parts(None, request, target(memory=HostAsDevice()))
