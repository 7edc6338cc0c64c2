"""Stores of a partitioned graph on one rank: replicated, partitioned and cached data.

The cache has the rows, remote or on disk, that batches of this rank need most often.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count as counted

import torch
from torch import Tensor

from khop.arguments import checked_field, whole_number
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.processes.group import Group
from khop.errors import Unsupported
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import CachePlan, FeatureStore
from khop.graph.partitions.book import read_book
from khop.graph.partitions.local_partitions import (
    LocalPartitionFeatures,
    LocalPartitionGraph,
    LocalPartitions,
)
from khop.graph.partitions.parts_folder import PartsFolder, files_of_parts, named_parts, open_parts
from khop.graph.partitions.placements import LANES, Placement
from khop.graph.store import GraphStore
from khop.kernels.memory import free_memory_bytes
from khop.loading.device.device_caching import visit_counts
from khop.loading.device.device_memory import MachineRanks
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, Drawn, StepRequests
from khop.sampling.seeds import NodeSeeds, SeedAffinity, SeedOrder
from khop.schema import EdgeType, NodeType, Schema, Specs, Type


@dataclass(frozen=True)
class PartitionOptions:
    """Options for sharing a partitioned graph among ranks: placement, batches in flight, and row format."""

    placement: Placement = Placement.FEATURES
    lanes: int = LANES  # batches in flight
    wire: Wire = Wire.STORED  # format in which rows are sent

    def __post_init__(self) -> None:
        checked_field(self, "lanes", whole_number, 1)


@dataclass(frozen=True)
class RankStores:
    """The stores of a partitioned graph on one rank."""

    topology: GraphStore
    features: FeatureStore
    folder: PartsFolder  # of the partitions with edges on this rank
    lanes: Lanes | None = None  # connections to the other ranks; None: this rank has all partitions


def stores_of(path: str | os.PathLike[str], group: Group, partition_options: PartitionOptions) -> RankStores:
    """Return the stores of a partitioned graph on this rank.

    Collective, unless every rank has all partitions. ValueError if files are missing on this machine; it
    names the partitions that this rank needs.
    """
    if partition_options.placement is Placement.WHOLE or group.world_size == 1:
        whole = open_parts(path)
        return RankStores(LocalPartitionGraph(whole), LocalPartitionFeatures(whole), whole)
    book = read_book(path)
    holders = PartitionOwners(book.num_parts, group.rank, group.world_size)
    edges_of, own = parts_needed(partition_options.placement, holders)
    try:
        folder = open_parts(path, edges_of, own)
        held = open_parts(path, own)
    except ValueError as error:
        raise ValueError(
            f"{error}. With placement {partition_options.placement}, rank {group.rank} of {group.world_size} "
            "needs the "
            f"edges of {named_parts(edges_of)} and the columns of {named_parts(own)}; `khop part-files` "
            "lists the files of a machine"
        ) from error
    lanes = Lanes(group, partition_options.lanes)
    features = rank_features(held, {}, group, lanes, partition_options.wire)
    if partition_options.placement is Placement.ALL:
        edges = PartitionedGraph(LocalPartitions.of(folder), RankOwners(holders, lanes))
        return RankStores(edges, features, folder, lanes)
    return RankStores(LocalPartitionGraph(folder), features, folder, lanes)


def placed_features(
    folder: PartsFolder, lanes: Lanes | None, group: Group, wire: Wire, places: Mapping[str, str]
) -> FeatureStore:
    """Return a rank's columns of a partitioned graph, each in the memory that `places` gives by name.

    "host" copies it, "mapped" maps its files, "disk" reads them row by row. Other columns go where they fit.
    """
    if lanes is None:
        return LocalPartitionFeatures(folder, places=places)
    return rank_features(open_parts(folder.path, folder.columns_of), places, group, lanes, wire)


def rank_features(
    held: PartsFolder, places: Mapping[str, str], group: Group, lanes: Lanes, wire: Wire
) -> PartitionedFeatures:
    """Return the columns of all ranks; `held` are the parts on this rank."""
    schema, book = held.schema, held.book
    types: list[Type] = [*schema.node_types, *schema.edge_types]
    offsets = {t: book.offsets[t] if isinstance(t, str) else book.first_edges(t) for t in types}
    specs: Specs = {t: schema.columns.get(t, {}) for t in types}
    room_bytes = free_memory_bytes() // 4 * 3 // group.local_world_size
    pieces = LocalPartitionFeatures(held, places=places, room_bytes=room_bytes).pieces
    holders = PartitionOwners(book.num_parts, group.rank, group.world_size)
    return PartitionedFeatures(pieces, specs, offsets, RankOwners(holders, lanes), wire=wire)


def parts_needed(placement: Placement, holders: PartitionOwners) -> tuple[range, range]:
    """Return the partitions whose edges a rank needs, and those whose columns it needs, as ranges."""
    everything, own = range(holders.parts), holders.parts_of(holders.rank)
    if placement is Placement.WHOLE:
        return everything, everything
    return (own if placement is Placement.ALL else everything), own


def machine_files(
    path: str | os.PathLike[str], placement: Placement, machine: int, machines: int, procs: int
) -> list[str]:
    """Return the files of a partitioned graph that the ranks of one machine need, relative to `path`.

    The whole partitioned graph has to exist at `path`. Ranks are numbered machine by machine, with `procs` on
    each.
    """
    if machines < 1 or procs < 1 or not 0 <= machine < machines:
        raise ValueError(
            f"machine {machine} of {machines} with {procs} processes each: there must be at least one "
            "process, and machines count from 0"
        )
    parts, found = read_book(path).num_parts, set[str]()
    for rank in range(machine * procs, (machine + 1) * procs):
        edges_of, own = parts_needed(placement, PartitionOwners(parts, rank, machines * procs))
        found.update(files_of_parts(path, edges_of, own))
    return sorted(found)


def affinity_of(graph: GraphStore, lanes: Lanes | None) -> SeedAffinity | None:
    """Return the ranks that store each node; None if every rank stores all nodes."""
    if lanes is None:
        return None
    bounds = {t: graph.partition_bounds(t) for t in graph.schema.node_types}
    parts = max(len(of_type) for of_type in bounds.values()) - 1
    holders = PartitionOwners(parts, 0, lanes.world_size)
    return SeedAffinity(bounds, [holders.ranks_of(part) for part in range(parts)])


class CacheBy(StrEnum):
    """Methods to estimate how often batches need each row."""

    AUTO = "auto"  # visits if they can be computed, otherwise counts
    VISITS = "visits"  # the probability that a batch contains a node, from the edges of all partitions
    COUNTS = "counts"  # counted in the first epoch's batches, which are drawn in advance


@dataclass(frozen=True)
class CacheBudgets:
    """Bytes available on a rank for cached rows: in host memory and in device memory."""

    host_cache_bytes: int = 0
    device_cache_bytes: int = 0


def with_caches(
    source: LocalSource, order: SeedOrder, graph: GraphStore, budgets: CacheBudgets, by: CacheBy
) -> LocalSource:
    """Add caches for rows that are remote or on disk to a batch source; its batches do not change.

    The rows that batches need most often are cached on the device, the next ones on the host. A cache that
    the source already has on the device keeps its bytes. If the columns are in memory already, `source` is
    returned unchanged. Collective if the features are.

    ValueError if `by` is VISITS and the visit probabilities cannot be computed. They require uniform draws,
    seeds that are nodes, and the edges of all partitions.
    """
    features = source.features
    if features is None or not _takes_cache(features):
        return source
    visits = _visits_of_others(source, order, graph, features, by)
    schema = Schema(graph.schema.node_types, (), columns=features.specs)

    def plan(budget_bytes: int) -> CachePlan | None:
        if not budget_bytes:
            return None
        found = CachePlan.of(schema, source.columns.of_nodes, visits, budget_bytes)
        for node_type, ids in found.ids.items():
            visits[node_type][ids] = 0  # the next cache must not have the same rows
        return found

    on_device = source.on_device
    if on_device is not None and not budgets.device_cache_bytes:
        for node_type in on_device.slots.keys() & visits.keys():
            visits[node_type][on_device.find(node_type, torch.arange(graph.num_nodes(node_type))) >= 0] = 0
    before = 0 if on_device is None else on_device.num_bytes
    of_device = plan(budgets.device_cache_bytes and budgets.device_cache_bytes + before)
    of_host = plan(budgets.host_cache_bytes)
    if of_device is not None:
        on_device = RowCache.filled(of_device, features, schema, source.device)
    return replace(
        source, features=features if of_host is None else features.cached(of_host), on_device=on_device
    )


def _takes_cache(features: FeatureStore) -> bool:
    """Return True if a cache of rows has an effect."""
    if features.is_collective:
        return True
    try:
        features.cached(CachePlan({}, {}, {}, 0))
    except Unsupported:
        return False
    return True


def _visits_of_others(
    source: LocalSource, order: SeedOrder, graph: GraphStore, features: FeatureStore, by: CacheBy
) -> dict[NodeType, Tensor]:
    """Return how often batches need each node, by node type; 0 for nodes in memory of this rank."""
    probabilities = None if by is CacheBy.COUNTS else _probabilities(source, order, features)
    if by is CacheBy.VISITS and probabilities is None:
        raise ValueError(
            "cache by visits: requires the edges of all parts, uniform draws and node seeds; use counts"
        )
    if probabilities is None:
        counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
        requests = StepRequests(order, 0, range(order.num_batches))
        visits = visit_counts(source.sampler, requests, counts)
    else:
        visits = dict(probabilities)
    for node_type, of_type in visits.items() if features.is_collective else ():
        rows = features.resident_rows(node_type)
        of_type[rows.start : rows.stop] = 0
    return visits


def _probabilities(
    source: LocalSource, order: SeedOrder, features: FeatureStore
) -> Mapping[NodeType, Tensor] | None:
    """Return the probability that this rank's share of a batch contains each node; None if unknown.

    If seeds have affinity, only the seeds stored on this rank count. A rank that does not store any gets
    surplus seeds of other ranks, so all seeds count.
    """
    if not isinstance(order.seeds, NodeSeeds):
        return None
    seeds = order.seeds.nodes
    if order.affinity is not None:
        rows = {t: features.local_rows(t) for t in seeds}
        own = {t: ids[(ids >= rows[t].start) & (ids < rows[t].stop)] for t, ids in seeds.items()}
        seeds = own if any(ids.numel() for ids in own.values()) else seeds
    return source.sampler.visits(seeds, -(-order.batch_size // order.world_size))


@dataclass(frozen=True)
class LaneSource:
    """A batch source whose ranks make each step together, several steps at a time.

    Lane i makes requests i, i + L, ... of a stream. All ranks make the same steps, each with its own seeds.
    """

    local: LocalSource  # over collective stores
    lanes: Lanes
    seed_types: tuple[NodeType | EdgeType, ...] = ()

    def prepare(self) -> None:
        """Build the arrays that draws need. Collective."""
        sampler = self.local.sampler
        sampler.graph.prepare(sampler.needs(self.seed_types))

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch, and wait for it. Collective: all ranks request the same step."""
        return self.local.make(request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches in the lanes; see BatchSource and `Lanes.map`. `prefetch_bytes` has no effect.

        Each lane gets an equal share of the threads.
        """
        local = self.local.with_threads(max(1, in_flight.threads // self.lanes.count))

        def made(request: BatchRequest) -> Drawn:
            return self._with_traffic(local.draw(request))

        return self.lanes.map(made, requests, in_flight.prefetch, place_of)

    def _with_traffic(self, drawn: Drawn) -> Drawn:
        """Add the counts of this lane since the begin of the batch."""
        peers = self.lanes.peers
        rows = sum(of_type.rows.numel() for of_type in drawn.cached_rows.values())
        with peers.turn:
            for name in ("needed_rows", "remote_rows", "device_cache_rows"):
                peers.counts[name] += rows
            return replace(drawn, traffic=dict(peers.counts))


def place_of(request: BatchRequest) -> tuple[int, int]:
    """Return epoch and step of a request, for messages between ranks."""
    return request.epoch, request.step


def machine_ranks(group: Group) -> MachineRanks:
    """Return the ranks of this machine, which have consecutive numbers.

    Making it and its calls are collective over these ranks alone: other machines may make other numbers of
    them, as one with a single rank makes none.
    """
    store, count = group.store, group.local_world_size
    if store is None:
        return MachineRanks(0, 1, lambda text: [text])
    first = group.rank - group.local_rank
    calls = map(f"machine/{first}/{next(group.machine_counters)}/{{}}".format, counted())

    def texts(text: str) -> list[str]:
        call = next(calls)
        keys = [f"{call}/{rank}" for rank in range(count)]
        group.at("sharing memory of the machine")
        with group.raising_lost():
            store.set(keys[group.local_rank], text)
            group.wait_until(lambda: store.check(keys), "waited for the ranks of this machine")
            return [store.get(key).decode() for key in keys]

    return MachineRanks(group.local_rank, count, texts)
