"""Sources of a loader's batches, chosen by the places of the graph's stores."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from khop.api.open_graph import Graph
from khop.distributed.device_lane_source import DeviceLaneSource
from khop.distributed.lane_source import LaneSource
from khop.distributed.row_parts import split_by_rows
from khop.draw import DrawKey
from khop.features.store import FeatureStore
from khop.features.table import NO_COLUMNS
from khop.loading.columns import ColumnChoice
from khop.loading.device_caching import pinned_copies, rows_of_host, visits_of
from khop.loading.device_columns import DeviceColumns, split_choice
from khop.loading.local_source import LocalSource
from khop.loading.source import BatchSource, StepRequests
from khop.loading.streams import Streams
from khop.loading.transfer import Transfer
from khop.sampling.listed import ListedLinks, ListedSeeds
from khop.sampling.sampler import Sampler, Seeds
from khop.sampling.seeds import SeedOrder
from khop.servers.source import source_of

if TYPE_CHECKING:
    from khop.loading.device_source import DeviceSource

_WARM_UP = 4  # batches of the CPU that measure how large batches of a GPU are


def local_source(
    graph: Graph,
    sampler: Sampler,
    choice: ColumnChoice,
    order: SeedOrder,
    device: torch.device,
    streams: Streams | None,
) -> LocalSource:
    """Return the source of batches that the CPU samples, with gathers of placed columns on the device."""
    features, stores = _features(graph, choice), graph.stores
    transfer = None if streams is None else Transfer(streams)
    if stores is None or graph.partition_options is not None or graph.lanes is not None:
        return LocalSource(sampler, features, choice, device, transfer=transfer)
    edges = graph.in_one_piece("stores on a device")
    of_host, of_device = split_choice(choice, stores)
    visits = visits_of(sampler, order, edges) if stores.plan.caches else {}
    copies = pinned_copies(stores, edges, of_device, visits)
    cached = None
    if features is not None and visits:
        cached = rows_of_host(stores, edges, of_host, features, visits)
    columns = None if of_device.is_empty else DeviceColumns(stores, graph.schema, of_device, copies)
    features = None if of_host.is_empty else features
    return LocalSource(sampler, features, of_host, device, cached, transfer, columns)


def device_source(
    graph: Graph, local: LocalSource, order: SeedOrder, streams: Streams | None
) -> DeviceSource | None:
    """Return the source of batches that kernels of a GPU draw; None if the CPU draws them."""
    stores = graph.stores
    if stores is None or stores.edges is None or streams is None:
        return None
    # Imported on use: it imports Triton, which comes with CUDA builds of torch alone.
    module = import_module("khop.loading.device_source")
    source: DeviceSource = module.DeviceSource(local, stores, streams, partial(_warm_up, order))
    return source


def source_by_cpu(graph: Graph, local: LocalSource, order: SeedOrder, streams: Streams | None) -> BatchSource:
    """Return the source of batches that the CPU draws: in lanes if the graph is partitioned across ranks.

    If ranks have rows on their GPUs, these exchange them.
    """
    if graph.lanes is None:
        seeds = order.seeds
        listed = seeds.reference if isinstance(seeds, ListedSeeds | ListedLinks) else None
        return source_of(local, listed)
    lane_source = LaneSource(local, graph.lanes, tuple(order.seeds.counts))
    rows = graph.rank_rows
    choice = ColumnChoice() if rows is None else split_by_rows(local.columns, rows)
    if rows is None or streams is None or choice.is_empty:
        return lane_source
    return DeviceLaneSource(lane_source, choice, rows, streams, partial(_warm_up, order))


def _warm_up(order: SeedOrder) -> list[tuple[Seeds, DrawKey]]:
    """Return seeds and keys of the first batches."""
    requests = StepRequests(order, 0, range(min(_WARM_UP, order.num_batches)))
    return [(request.seeds(), request.key) for request in requests]


def _features(graph: Graph, choice: ColumnChoice) -> FeatureStore | None:
    if choice.is_empty:
        return None
    if graph.features is NO_COLUMNS:
        raise ValueError(
            "columns are requested, but the graph has none: give the loader graph=khop.Graph(...)"
        )
    return graph.features
