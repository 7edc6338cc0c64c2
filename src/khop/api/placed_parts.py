"""Placement of a partitioned graph's columns: on the host of each rank, or rows of a rank on its GPU."""

from __future__ import annotations

from dataclasses import dataclass

from khop.distributed.placed_rank_rows import placed_rank_rows
from khop.distributed.placement import placed_features, rank_features
from khop.distributed.rank_rows import RankRows
from khop.exchange.lanes import Lanes
from khop.exchange.row_wire import Wire
from khop.features.store import FeatureStore
from khop.graph.folder import Folder
from khop.loading.device_memory import DeviceMemory
from khop.loading.device_placement import DevicePlacement
from khop.loading.memory_plan import WorkSizes
from khop.loading.placed_stores import PlacedStores
from khop.partition.parts_folder import PartsFolder, open_parts
from khop.runtime.group import this_group

# Features are None if unchanged, and rows if no column is on a GPU.
PlacedParts = tuple[PlacedStores, FeatureStore | None, RankRows | None]


@dataclass(frozen=True)
class PartsTarget:
    """The ranks and the device that columns of a partitioned graph are placed for."""

    lanes: Lanes | None  # None: this process has all partitions
    wire: Wire
    memory: DeviceMemory | None  # None: the CPU
    no_kernels: str | None  # the reason why kernels cannot run on the device
    work: WorkSizes


def placed_parts(folder: Folder | None, request: DevicePlacement, target: PartsTarget) -> PlacedParts:
    """Place the columns of a partitioned graph as requested; `folder` is None for a graph in memory.

    ValueError for stores that stay on the host, and for columns that do not fit.
    """
    if (request.topology is not None and request.topology.is_read_by_gpu) or request.caches:
        raise ValueError(
            f"{request.device}: edges of a partitioned graph stay in host memory or on disk; leave topology "
            "and cache out (`Loader.cache_features` caches rows of other ranks on a GPU), or open a graph "
            "that is not partitioned"
        )
    work, memory = target.work, target.memory
    if not request.columns and memory is not None:
        return PlacedStores.none(request, work, memory.device), None, None
    if not isinstance(folder, PartsFolder):
        raise ValueError(
            f"columns on device {request.device!r}: the graph is in memory, not in a folder; leave columns "
            "out"
        )
    if request.is_explicit and memory is not None:
        return _rows_on_gpu(folder, request, target, memory)
    stores = PlacedStores.on_cpu(request, work, folder.schema.node_columns)
    features = placed_features(folder, target.lanes, this_group(), target.wire, stores.plan.columns)
    if memory is not None:
        stores = PlacedStores.none(request, work, memory.device)
    return stores, features, None


def _rows_on_gpu(
    folder: PartsFolder, request: DevicePlacement, target: PartsTarget, memory: DeviceMemory
) -> PlacedParts:
    """Place this rank's rows of the requested columns on its GPU, and the other columns on the host."""
    if target.lanes is None:
        raise ValueError(
            f"{request.device}: this process has all partitions, and exchanges no rows: give "
            'columns="host", "mapped" or "disk", open a graph that is not partitioned, or start several '
            'ranks with placement="features" or "all"'
        )
    if target.no_kernels is not None:
        raise ValueError(
            f"{request.device}: kernels cannot run there: {target.no_kernels}; or leave the columns to the "
            'CPU: columns="host"'
        )
    asked = {name: request.place_of(name) for name in folder.schema.node_columns}
    on_host = {
        name: str(place) for name, place in asked.items() if place is not None and not place.is_read_by_gpu
    }
    held = open_parts(folder.path, folder.columns_of)
    features = rank_features(held, on_host, this_group(), target.lanes, target.wire)
    rows, stores = placed_rank_rows(features, request, memory, target.work)
    return stores, features, rows
