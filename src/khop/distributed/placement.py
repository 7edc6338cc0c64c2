"""The stores of a partitioned graph on one of several ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from khop.arguments import whole_number
from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.exchange.lanes import Lanes
from khop.exchange.row_wire import Wire
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.kernels.memory import free_memory_bytes
from khop.partition.book import read_book
from khop.partition.local_partition_features import LocalPartitionFeatures
from khop.partition.local_partition_graph import LocalPartitionGraph
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import PartsFolder, files_of_parts, named_parts, open_parts
from khop.partition.placements import LANES, Placement
from khop.runtime.group import Group
from khop.sampling.seeds import SeedAffinity
from khop.schema import Specs, Type


@dataclass(frozen=True)
class PartitionOptions:
    """Options for sharing a partitioned graph among ranks: placement, batches in flight, and row format."""

    placement: Placement = Placement.FEATURES
    lanes: int = LANES  # batches in flight
    wire: Wire = Wire.STORED  # format in which rows are sent

    def __post_init__(self) -> None:
        whole_number("lanes", self.lanes, 1)


@dataclass(frozen=True)
class RankStores:
    """The stores of a partitioned graph on one rank."""

    topology: GraphStore
    features: FeatureStore
    folder: PartsFolder  # of the partitions with edges on this rank
    lanes: Lanes | None = None  # connections to the other ranks; None: this rank has all partitions
    rank_edges: PartitionedGraph | None = None  # the topology, if ranks hold the edges in parts


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
        edges = PartitionedGraph(LocalPartitions.of(folder), holders, lanes)
        return RankStores(edges, features, folder, lanes, edges)
    return RankStores(LocalPartitionGraph(folder), features, folder, lanes)


def placed_features(
    folder: PartsFolder, lanes: Lanes | None, group: Group, wire: Wire, places: Mapping[str, str]
) -> FeatureStore:
    """Return a rank's columns of a partitioned graph, each in the memory that `places` gives by its name.

    "host" copies it, "mapped" maps its files, "disk" reads them row by row. Other columns go where they fit.
    """
    if lanes is None:
        return LocalPartitionFeatures(folder, places=places)
    return rank_features(open_parts(folder.path, folder.columns_of), places, group, lanes, wire)


def rank_features(
    held: PartsFolder, places: Mapping[str, str], group: Group, lanes: Lanes, wire: Wire
) -> PartitionedFeatures:
    """Return the columns of all ranks, of which this one has the parts in `held`."""
    schema, book = held.schema, held.book
    types: list[Type] = [*schema.node_types, *schema.edge_types]
    offsets = {t: book.offsets[t] if isinstance(t, str) else book.first_edges(t) for t in types}
    specs: Specs = {t: schema.columns.get(t, {}) for t in types}
    room_bytes = free_memory_bytes() // 4 * 3 // group.local_world_size
    pieces = LocalPartitionFeatures(held, places=places, room_bytes=room_bytes).pieces
    holders = PartitionOwners(book.num_parts, group.rank, group.world_size)
    return PartitionedFeatures(pieces, specs, offsets, holders, lanes, wire=wire)


def parts_needed(placement: Placement, holders: PartitionOwners) -> tuple[range, range]:
    """Return two ranges of partitions: a rank needs the edges of the first and the columns of the second."""
    everything, own = range(holders.parts), holders.parts_of(holders.rank)
    if placement is Placement.WHOLE:
        return everything, everything
    return (own if placement is Placement.ALL else everything), own


def machine_files(
    path: str | os.PathLike[str], placement: Placement, machine: int, machines: int, procs: int
) -> list[str]:
    """Return the files of a partitioned graph that the ranks of one machine need, relative to `path`.

    The whole partitioned graph has to exist at `path`. Ranks are numbered machine by machine, `procs` on
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
    """Return the ranks that store each node; None if every rank has all nodes."""
    if lanes is None:
        return None
    bounds = {t: graph.partition_bounds(t) for t in graph.schema.node_types}
    parts = max(len(of_type) for of_type in bounds.values()) - 1
    holders = PartitionOwners(parts, 0, lanes.world_size)
    return SeedAffinity(bounds, [holders.ranks_of(part) for part in range(parts)])
