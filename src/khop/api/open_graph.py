"""Graphs with their columns: opened from a folder, placed on devices, and saved."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from khop.arguments import graph_of, instance_of, one_of, path_of, shown
from khop.data.builtin import named_folder
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.placement import (
    PartitionOptions,
    machine_ranks,
    placed_features,
    rank_features,
    stores_of,
)
from khop.distributed.processes.group import this_group
from khop.distributed.rank_rows import RankRows, placed_rank_rows, planned_rank_rows
from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph.added_edges import with_edges
from khop.graph.atomic import ProgressCallback, refuse_existing
from khop.graph.build import save_graph
from khop.graph.features.store import FeatureStore, RenumberedRows
from khop.graph.features.table import NO_COLUMNS
from khop.graph.folder import Folder, GraphFolder, large_columns, open_folder, refuse_damage
from khop.graph.layout import is_partitioned
from khop.graph.manifest import Contents, open_manifest
from khop.graph.needs import Need
from khop.graph.node_ids import Names, OwnIds, ids_in, ids_of
from khop.graph.partitions.book import read_book
from khop.graph.partitions.local_partitions import LocalPartitionFeatures
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.graph.partitions.placements import LANES, Placement
from khop.graph.rule import Hop
from khop.graph.snapshots import current_folder
from khop.graph.store import CscGraph, DrawHop, GraphStore, open_csc_graph
from khop.graph.tables import EdgeTable
from khop.kernels.csc import Csc
from khop.kernels.memory import free_memory_bytes
from khop.loading.device.device_memory import DeviceMemory, MachineRanks, memory_of
from khop.loading.device.device_placement import ALL, AUTO, Check, DevicePlacement, StorePlace, byte_size
from khop.loading.device.memory_plan import WorkSizes, gigabytes
from khop.loading.device.placed_stores import (
    Columns,
    Conditions,
    PlacedStores,
    folder_features,
    placed_stores,
)
from khop.loading.device.static_choice import why_no_batches
from khop.process_tuning import check_fork
from khop.sampling.seeds import ListedNodes, SeedIds, ids_here, node_ids
from khop.schema import ColumnSpec, EdgeType, EdgeTypeName, NodeType, Schema, by_edge_type, edge_type_of
from khop.servers.graph import RemoteView, remote_names

# features: None if unchanged; rows: None if no column is on a GPU
PlacedParts = tuple[PlacedStores, FeatureStore | None, RankRows | None]


@dataclass(frozen=True)
class PartsTarget:
    """The ranks and the device for which columns of a partitioned graph are placed."""

    lanes: Lanes | None  # None: all partitions are in this process
    wire: Wire
    memory: DeviceMemory | None  # None: the CPU
    no_kernels: str | None  # the reason why kernels cannot make the batches
    work: WorkSizes
    edges: Callable[[], CscGraph] | None = None  # the whole topology; None: edges are partitioned, too
    machine: MachineRanks | None = None  # None: one rank on this machine


def check_request_of_parts(request: DevicePlacement, has_edges: bool) -> None:
    """Raise ValueError for stores of a partitioned graph that no rank can place, before anything is read.

    `has_edges`: each rank has the whole topology.
    """
    has_topology = request.topology is not None and request.topology.is_read_by_gpu
    if request.caches:
        raise ValueError(
            f"{request.device}: a cache for columns of a partitioned graph has rows of other ranks, and is "
            "made by a loader; leave cache out and call `Loader.cache_features(0, device_cache_bytes=...)`"
        )
    if has_topology and not has_edges:
        raise ValueError(
            f'{request.device}: topology "{request.topology}": each rank has a part of the edges, from '
            'which the CPU samples; leave topology out, or open the graph with placement="features"'
        )
    if has_topology and not any(place.is_read_by_gpu for place in request.columns.values()):
        raise ValueError(
            f'{request.device}: topology "{request.topology}": on a partitioned graph, a GPU can only sample '
            'if it also stores columns; give columns "device" or "pinned" as well, or leave topology out'
        )
    if StorePlace.SHARDED in request.columns.values():
        raise ValueError(
            f'{request.device}: columns "sharded": each rank of a partitioned graph has a part of the rows '
            'already; give "device"'
        )


def placed_parts(folder: Folder | None, request: DevicePlacement, target: PartsTarget) -> PlacedParts:
    """Place the columns of a partitioned graph as requested; `folder` is None for a graph in memory.

    Without requested columns, GPUs get them where each rank has the whole topology. Raises ValueError for
    stores that must stay on the host, and for columns that do not fit.
    """
    work, memory = target.work, target.memory
    check_request_of_parts(request, target.edges is not None)
    if not request.columns and memory is not None:
        return _planned_on_gpus(folder, request, target, memory)
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


def _planned_on_gpus(
    folder: Folder | None, request: DevicePlacement, target: PartsTarget, memory: DeviceMemory
) -> PlacedParts:
    """Place columns and edges on the GPUs of all ranks, as far as there is room, or leave all to the CPU.

    Collective if each rank has the whole topology.
    """
    group, why, placed = this_group(), "", None
    if target.edges is None:
        why = "each rank has a part of the edges"
    elif request.topology is StorePlace.HOST:
        why = "as requested"
    elif not isinstance(folder, PartsFolder):
        why = "the graph is in memory, not in a folder"
    else:
        with group.exchanging("placing columns on devices"):
            reasons = group.gather_bytes((target.no_kernels or "").encode())
            reason = b"".join(reasons).decode() and (target.no_kernels or "those of another rank cannot")
            if not reason:
                held = open_parts(folder.path, folder.columns_of)
                assert target.lanes is not None, "ranks without lanes have whole columns"
                features = rank_features(held, {}, group, target.lanes, target.wire)
                made = features, request, memory, target.work, target.edges(), target.machine, group
                placed = planned_rank_rows(*made)
            why = reason or "the columns of a rank do not fit on its card, or in memory that it may pin"
    if placed is None:
        stores = PlacedStores.none(request, target.work, memory.device)
        return replace(stores, line=f"{stores.line}: {why}"), None, None
    rows, stores = placed
    return stores, rows.features, rows


def _rows_on_gpu(
    folder: PartsFolder, request: DevicePlacement, target: PartsTarget, memory: DeviceMemory
) -> PlacedParts:
    """Place this rank's rows of the requested columns on its GPU, and the other columns on the host.

    The whole topology is placed there, too, if there is room for it.
    """
    assert target.lanes is not None, "ranks without lanes have whole columns"
    if target.no_kernels is not None:
        raise ValueError(
            f"{request.device}: kernels cannot make the batches: {target.no_kernels}; or keep the columns "
            'on the CPU: columns="host"'
        )
    asked = {name: request.place_of(name) for name in folder.schema.node_columns}
    on_host = {
        name: str(place) for name, place in asked.items() if place is not None and not place.is_read_by_gpu
    }
    held = open_parts(folder.path, folder.columns_of)
    features = rank_features(held, on_host, this_group(), target.lanes, target.wire)
    edges = None if request.topology is StorePlace.HOST or target.edges is None else target.edges()
    rows, stores = placed_rank_rows(features, request, memory, target.work, edges, target.machine)
    return stores, features, rows


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with its columns: a thread-safe graph store with a public API.

    Graphs are made by `khop.open_graph` and `khop.graph_from_*`. The graph of a folder is pickled as the
    folder's path and the options for ranks. Unpickling opens the folder again, collectively if the graph is
    partitioned across ranks.

    Args:
        topology: Edges.
        features: Columns.
        folder: Folder of the graph; None (default) for a graph in memory.
        splits: Ids by split and node type, for a graph without a folder; default none.
        partition_options: Distribution of a partitioned folder over ranks; default None.
        origin: For a graph in memory, the folder whose arrays it shares; default None.
        stores: Copies for GPU kernels. None (default): the CPU makes all batches.
        lanes: Connections to ranks that store other partitions. None (default): the whole graph is local.
        rank_rows: Rows of this rank on its GPU, which GPUs exchange; default None.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> graph.num_nodes("package"), graph.split_names
        (63436, ('train', 'val', 'test'))
        >>> graph.columns["package"]["x"].shape
        torch.Size([63436, 512])
    """

    topology: GraphStore
    features: FeatureStore
    folder: Folder | None = None
    splits: Mapping[str, Mapping[NodeType, Tensor | ListedNodes]] = field(default_factory=dict)
    partition_options: PartitionOptions | None = None
    origin: Folder | None = None
    stores: PlacedStores | None = None
    lanes: Lanes | None = None
    rank_rows: RankRows | None = None

    @classmethod
    def of(cls, store: GraphStore) -> Graph:
        """Return a graph with these edges and without columns; a `Graph` is returned unchanged.

        Args:
            store: The edges.
        """
        graph_of("graph", store)
        return store if isinstance(store, Graph) else cls(store, NO_COLUMNS)

    @property
    def schema(self) -> Schema:
        """Node types, edge types and their columns."""
        return self.topology.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type.

        Args:
            node_type: The node type.
        """
        return self.topology.num_nodes(node_type)

    @property
    def is_collective(self) -> bool:
        """True if a hop communicates with other ranks: every rank must then make the same number of hops."""
        return self.topology.is_collective

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: that of the topology's edges."""
        return self.topology.frontier_device

    @property
    def device_stores(self) -> tuple[CscGraph, FeatureStore] | None:
        """Edges and node columns that GPU kernels read; None: the CPU reads them, or GPUs exchange them."""
        stores = self.stores
        if stores is None or stores.edges is None or self.rank_rows is not None:
            return None
        return stores.edges, stores.features(self.schema)

    @property
    def servers(self) -> RemoteView | None:
        """The servers that make batches of this graph; None if this process makes them."""
        found = self.topology.servers
        assert found is None or isinstance(found, RemoteView)
        return found

    @property
    def rank_edges(self) -> PartitionedGraph | None:
        """The topology if edges are partitioned across ranks; None if they are all local, or on servers."""
        return self.topology if isinstance(self.topology, PartitionedGraph) else None

    def num_edges(self, edge_type: EdgeTypeName) -> int:
        """Return the number of edges of a type, over all partitions.

        Args:
            edge_type: The edge type.
        """
        return self.topology.num_edges(edge_type_of(edge_type))

    def in_degrees(self, edge_type: EdgeTypeName, nodes: SeedIds) -> Tensor:
        """Return the in-degree of some destinations, int64 (nodes).

        Args:
            edge_type: The edge type.
            nodes: Destinations, as ids or a boolean mask, or "all".
        """
        edge_type = edge_type_of(edge_type)
        if not isinstance(nodes, Tensor):
            nodes = node_ids("nodes", nodes, self.num_nodes(edge_type[2]))
        return self.topology.in_degrees(edge_type, nodes)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the ids before renumbering, int64 (nodes), which key all draws; None if not renumbered.

        Args:
            node_type: The node type.
        """
        return self.topology.original_ids(node_type)

    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Return the first node id of each partition, then the end of the last one.

        A graph without partitions counts as one partition.

        Args:
            node_type: The node type.
        """
        return self.topology.partition_bounds(node_type)

    def prepare(self, needs: Collection[Need]) -> None:
        """Build the arrays that draws need. Collective if the graph is.

        Args:
            needs: The arrays, as returned by `Sampler.needs`.
        """
        self.topology.prepare(needs)

    @property
    def device(self) -> torch.device:
        """The device of batches: the GPU that the graph is placed on, else the CPU."""
        return torch.device("cpu") if self.stores is None else self.stores.device

    def on(
        self,
        device: torch.device | str = "cuda",
        *,
        topology: StorePlace | str = AUTO,
        columns: StorePlace | str | Mapping[str, StorePlace | str] = AUTO,
        cache: int | str | Mapping[str, int | str] = 0,
        reserve: int | str = "2GiB",
        check: Check | str = Check.FIRST,
    ) -> Graph:
        """Return the graph for batches on a GPU, with its stores placed in device, pinned or host memory.

        `placement` describes what was chosen and why. The placed graph is pickled as this graph and the
        request. On several ranks of a machine, the call is collective, and they share pinned stores. If the
        graph is partitioned across ranks, it is collective over all ranks, each GPU stores the rows of its
        rank, and GPUs exchange rows. If only columns are partitioned, each GPU also samples, and "auto" uses
        the GPUs if all of them have room. See docs/gpu.md.

        Args:
            device: The GPU, by default "cuda", the GPU of this rank. "cpu" supports columns as "host",
                "mapped" or "disk".
            topology: "device", "sharded" (each GPU of the machine has a part, and reads the others'),
                "pinned" (host memory that the GPU reads), "host" (the CPU samples), or "auto" (default):
                the first of these with room, or "host" if kernels cannot make the batches. The first call
                on a GPU compares them with the CPU, which takes seconds.
            columns: One of these, "mapped" (the graph's files) or "disk" (files read row by row) for all
                columns of nodes, or a mapping from column names. Default "auto".
            cache: GPU memory for rows of a column that is not in GPU memory: "4GB", or "20%" of the column;
                also by column name. Columns that the CPU gathers share one cache, with the sum of their
                sizes. Default 0.
            reserve: GPU memory, as bytes or text, that placed stores leave to model, optimizer and
                batches; default "2GiB".
            check: "first" (default) compares the first batch that a loader makes in each epoch with the
                CPU's, on a thread, and a difference is an error; "none" compares none.
        Raises:
            ValueError: The stores do not fit into memory, or are not available for this graph.
        """
        check_fork()
        request = DevicePlacement.of(device, topology, columns, cache, check)
        return placed_on(self, request, WorkSizes(pool_bytes=byte_size(reserve, "reserve")))

    @property
    def placement(self) -> str:
        """Description of where each store is placed, and why, in one line."""
        return "cpu: all stores are read by the CPU" if self.stores is None else self.stores.line

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node, by the topology.

        Args:
            frontier: Nodes to expand, by type.
            hop: Number, fanouts and rule of the hop.
            key: Key of the draws.
        """
        return self.topology.sample_hop(frontier, hop, key)

    def for_hops(self, hops: Sequence[Hop]) -> DrawHop:
        """Return the topology's function that draws these hops.

        Args:
            hops: The hops.
        """
        return self.topology.for_hops(hops)

    def csc(self, edge_type: EdgeTypeName) -> Csc:
        """Return the edges of a type by destination.

        Args:
            edge_type: The edge type.
        """
        return self.topology.local_csc(edge_type_of(edge_type))

    def local_csc(self, edge_type: EdgeTypeName) -> Csc:
        """Return the edges of a type by destination, as `csc` does.

        Args:
            edge_type: The edge type.
        """
        return self.csc(edge_type)

    def in_one_piece(self, what: str) -> CscGraph:
        """Return the topology with all edges in this process, with its partitions joined.

        Args:
            what: Name of the caller, for the error.
        """
        return self.topology.in_one_piece(what)

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        """Return a store with only some of the edges, without columns; see GraphStore.

        Args:
            kept: Positions of the edges to keep by edge type, int64, ascending: one tensor per partition.
        """
        return self.topology.keeping(kept)

    def with_edges(self, edges: Mapping[EdgeType, EdgeTable] | Mapping[str, EdgeTable]) -> Graph:
        """Return the graph, in memory, with additional edge types. Existing arrays are shared, not copied.

        Args:
            edges: Tables of edges by new edge type.
        Raises:
            ValueError: The graph already has an edge type, or a `reverse_of` has other edges.
        """
        edges = by_edge_type(edges)
        for edge_type, table in edges.items():
            instance_of(f"edge type {edge_type}:", table, EdgeTable, "give a khop.EdgeTable")
        topology = with_edges(self.in_one_piece("with_edges"), edges)
        features = self.features.with_columns({t: topology.columns.get(t, {}) for t in edges})
        splits = {name: self.split(name) for name in self.split_names}
        origin = self.folder or self.origin
        return Graph(topology, features, splits=splits, origin=origin, lanes=self.lanes)

    def sample_negatives(
        self, edge_type: EdgeTypeName, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links, by the topology.

        Args:
            edge_type: Edge type of the links.
            negatives: Distribution of the negatives.
            positives: Sources of the links, and their positions.
            key: Key of the draws.
        """
        return self.topology.sample_negatives(edge_type_of(edge_type), negatives, positives, key)

    def only(self, edge_types: Collection[EdgeTypeName]) -> Graph:
        """Return the graph, in memory, with only these edge types and the node types at their ends.

        Args:
            edge_types: Edge types to keep.
        """
        if isinstance(edge_types, str) or not isinstance(edge_types, Collection):
            raise ValueError(f"edge types {shown(edge_types)}: must be a list, as [{edge_types!r}]")
        kept = [edge_type_of(edge_type) for edge_type in edge_types]
        origin = self.folder or self.origin
        return Graph(self.topology.only(kept), self.features, origin=origin, lanes=self.lanes)

    @property
    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """All columns by type, over all partitions; mapped for a folder. Edge columns are in CSC order."""
        if self.folder is not None:
            return self.folder.columns()
        if self.features.is_collective and not self.is_collective:
            return self.in_one_piece("columns").columns  # all partitions are local, like the edges
        return self.features.whole_columns()

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits; each belongs to at least one node type."""
        return tuple(self.splits) if self.folder is None else self.folder.split_names

    def split(self, name: str) -> Mapping[NodeType, Tensor | ListedNodes]:
        """Return the int64 node ids of a split, for each node type that has the split.

        For a graph on servers, the ids stay on the servers: a loader accepts `khop.ListedNodes` like ids.

        Args:
            name: Name of the split.
        """
        if self.folder is not None:
            return self.folder.split(name)
        if name not in self.splits:
            raise ValueError(f"no split {name!r}; there are {list(self.splits)}")
        return self.splits[name]

    def save(self, path: str | os.PathLike[str], *, notice: ProgressCallback | None = None) -> Path:
        """Write the graph with its columns and splits as a folder, and return the path; see `write_graph`.

        Args:
            path: The new folder.
            notice: Function called with a description, the bytes done and all bytes.
        Raises:
            ValueError: A file that its arrays are mapped from is damaged, or the folder already exists.
        """
        target, origin = path_of("path", path), self.folder or self.origin
        refuse_existing(target)
        if origin is not None:
            refuse_damage(origin, notice)
        return save_sound(self, target, notice)

    def __reduce__(self) -> tuple[Callable[..., Graph], tuple[object, ...]]:
        if self.stores is not None:
            plan = self.stores.plan
            return placed_on, (replace(self, stores=None, rank_rows=None), plan.request, plan.work)
        if self.folder is None:
            return Graph, (self.topology, self.features, None, self.splits, None, self.origin)
        home = self.folder if isinstance(self.folder, GraphFolder) else self.folder.path
        return _opened, (home, self.partition_options)

    def __repr__(self) -> str:
        return graph_text(self)


def save_sound(graph: Graph, path: Path, notice: ProgressCallback | None) -> Path:
    """Write a graph whose mapped files have been checked as a folder."""
    splits = {name: {t: ids_here(of) for t, of in graph.split(name).items()} for name in graph.split_names}
    origin = graph.folder or graph.origin
    return save_graph(path, graph.in_one_piece("save"), graph.columns, splits, notice, origin=origin)


def open_graph(
    path: str | os.PathLike[str],
    *,
    placement: Placement | str = Placement.FEATURES,
    lanes: int = LANES,
    wire: Wire | str = Wire.STORED,
) -> Graph:
    """Open a graph folder, or a built-in graph by its name, in milliseconds.

    After appends, it is the newest snapshot; GRAPH/snapshots has earlier ones. Appends do not change a
    graph that is already open. Files are memory-mapped. Batches of a partitioned folder are bit-identical to
    batches of the graph before partitioning, except for node ids; the column "original_id" has the old ids.

    A single process opens all partitions. With several ranks, each opens some of them and requests the rest
    from other ranks: the call is then collective, and so are the epochs of its loaders. If the folder is not
    partitioned, `lanes` and `wire` have no effect, and a warning is issued.

    Args:
        path: The folder, or the name of a built-in graph as a string ("debian").
        placement: What is partitioned across ranks: "features" (default): columns; "all": columns and
            edges; "whole": nothing, each rank opens all partitions.
        lanes: Batches in flight between ranks, default 4.
        wire: Format of rows sent between ranks: "stored" (default), or rounded to "float16" or "int8".
    Returns:
        The graph.
    Raises:
        ValueError: The folder is not a graph, or the name is both a built-in graph and a folder.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> graph.schema.edge_types
        (('package', 'linked', 'package'),)
    """
    folder = named_folder(path if isinstance(path, str) else path_of("path", path))
    partition_options = PartitionOptions(
        one_of("placement", placement, Placement), lanes, one_of("wire", wire, Wire)
    )
    if not is_partitioned(folder):
        _warn_of_unused(folder, partition_options)
    return _opened(folder, partition_options)


def _warn_of_unused(folder: str | os.PathLike[str], partition_options: PartitionOptions) -> None:
    defaults = PartitionOptions()
    given = [
        f"{name} {value}"
        for name, value, default in (
            ("lanes", partition_options.lanes, defaults.lanes),
            ("wire", partition_options.wire.value, defaults.wire.value),
        )
        if value != default
    ]
    if given and this_group().rank == 0:
        warnings.warn(
            f"{folder}: {' and '.join(given)}: no effect, because the graph is not partitioned. Leave out "
            "lanes and wire, or partition the graph with `khop partition`",
            stacklevel=3,
        )


def _opened(path: str | os.PathLike[str] | GraphFolder, partition_options: PartitionOptions | None) -> Graph:
    if isinstance(path, GraphFolder):
        return Graph(open_csc_graph(path), folder_features(path), path)
    if is_partitioned(path):
        partition_options = partition_options or PartitionOptions()
        stores = stores_of(path, this_group(), partition_options)
        return Graph(
            stores.topology,
            stores.features,
            stores.folder,
            partition_options=partition_options,
            lanes=stores.lanes,
        )
    folder = open_folder(path)
    return Graph(open_csc_graph(folder), folder_features(folder), folder)


def placed_on(graph: Graph, request: DevicePlacement, work: WorkSizes, leave: str | None = None) -> Graph:
    """Return the graph with its stores placed on a GPU of this process, as `Graph.on` does.

    `leave` is a reason to keep all stores on the CPU if none is requested on the GPU.
    """
    is_cpu = request.device == "cpu" and bool(request.columns)
    is_local = isinstance(_rows_of_parts(graph.features), LocalPartitionFeatures)
    if is_local or graph.is_collective or graph.lanes is not None:
        return _parts_placed_on(graph, request, work, leave)
    folder = graph.folder if isinstance(graph.folder, GraphFolder) else None
    if is_cpu and folder is None:
        raise ValueError(
            f"columns on device {request.device!r}: the graph is in memory, not in a folder; leave columns "
            "out, or save the graph and open its folder"
        )
    if is_cpu:
        stores = PlacedStores.on_cpu(request, work, graph.schema.node_columns)
    else:
        stores = _placed_on_gpu(graph, folder, request, work, leave)
    if folder is None:
        return replace(graph, stores=stores)
    places = {n: place for n, place in stores.plan.columns.items() if request.place_of(n) is not None}
    return replace(graph, stores=stores, features=folder_features(folder, places))


def _parts_placed_on(graph: Graph, request: DevicePlacement, work: WorkSizes, leave: str | None) -> Graph:
    is_cpu = request.device == "cpu" and bool(request.columns)
    is_planned = not (request.columns or request.topology or request.caches or graph.is_collective)
    if graph.lanes is None and not is_cpu and (request.is_explicit or (is_planned and leave is None)):
        return _whole_on_gpu(graph, request, work)
    memory = None if is_cpu else memory_of(request.device)
    no_kernels = None if request.is_explicit else leave
    if memory is not None and no_kernels is None and (request.is_explicit or is_planned):
        no_kernels = why_no_batches(memory.device)
    rows, group = _rows_of_parts(graph.features), this_group()
    wire = rows.wire if isinstance(rows, PartitionedFeatures) else Wire.STORED
    machine = machine_ranks(group) if group.local_world_size > 1 else None
    edges = None if graph.is_collective else partial(graph.in_one_piece, "sampling on a device")
    target = PartsTarget(graph.lanes, wire, memory, no_kernels, work, edges, machine)
    stores, placed, rank_rows = placed_parts(graph.folder or graph.origin, request, target)
    features = graph.features if placed is None else _over(placed, graph.features)
    return replace(graph, stores=stores, features=features, rank_rows=rank_rows)


def _rows_of_parts(features: FeatureStore) -> FeatureStore:
    """Return the columns of all edges of a graph, from those of some of its edges."""
    return _rows_of_parts(features.below) if isinstance(features, RenumberedRows) else features


def _over(rows: FeatureStore, features: FeatureStore) -> FeatureStore:
    """Return other columns of all edges of a graph, with the same edges chosen as in `features`."""
    if not isinstance(features, RenumberedRows):
        return rows
    return replace(features, below=_over(rows, features.below))


def _whole_on_gpu(graph: Graph, request: DevicePlacement, work: WorkSizes) -> Graph:
    """Place the joined edges and columns of a graph with all partitions in this process, as requested.

    Without a request, all columns of nodes are planned. They are joined in memory.
    """
    known = graph.schema.node_columns
    request.check_names(dict.fromkeys(known))
    asked = {name: place for name in known if (place := request.place_of(name)) is not None}
    on_host = {name: str(place) for name, place in asked.items() if not place.is_read_by_gpu}
    of_kernels = {name: place for name, place in asked.items() if place.is_read_by_gpu}
    for name in request.caches:
        if name != ALL and name not in of_kernels:
            raise ValueError(
                f"cache of {name!r}: the CPU reads this column of a partitioned graph; give columns "
                f'{{{name!r}: "pinned"}} as well, or leave the cache out'
            )
    planned = of_kernels if request.is_explicit else known

    def joined() -> Columns:
        return {
            t: {name: graph.columns[t][name] for name in of_type if name in planned}
            for t, of_type in graph.schema.columns.items()
            if isinstance(t, str)
        }

    leave = None if request.is_explicit else _why_not_joined(graph)
    stores = _placed_on_gpu(graph, None, replace(request, columns=of_kernels), work, leave, joined)
    stores = replace(stores, plan=replace(stores.plan, request=request))
    if not isinstance(graph.folder, PartsFolder):
        return replace(graph, stores=stores)
    features = placed_features(graph.folder, None, this_group(), Wire.STORED, on_host)
    return replace(graph, stores=stores, features=features)


def _why_not_joined(graph: Graph) -> str | None:
    """Return why the columns of nodes are not joined in memory; None if they take at most half of it."""
    size = sum(
        graph.num_nodes(t) * math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize
        for t, specs in graph.schema.columns.items()
        if isinstance(t, str)
        for spec in specs.values()
    )
    room = free_memory_bytes() // 2 // this_group().local_world_size
    return f"its columns, {gigabytes(size)}, are not joined in {gigabytes(room)}" if size > room else None


def _placed_on_gpu(
    graph: Graph,
    folder: GraphFolder | None,
    request: DevicePlacement,
    work: WorkSizes,
    leave: str | None,
    columns: Callable[[], Columns] | None = None,
) -> PlacedStores:
    memory = memory_of(request.device)
    large = {} if folder is None else large_columns(folder)
    group = this_group()
    machine = machine_ranks(group) if group.local_world_size > 1 else None
    is_left = leave is not None and not request.is_explicit
    no_kernels = leave if is_left else why_no_batches(memory.device)
    if machine is not None and not machine.all_say(int(no_kernels is None)):
        no_kernels = no_kernels or "those of another rank of this machine cannot"
    conditions = Conditions(
        work,
        no_kernels=no_kernels,
        is_mapped=folder is not None,
        on_disk=frozenset(name for of_type in large.values() for name in of_type),
    )
    edges = graph.in_one_piece("stores on a device")
    of_nodes = graph.columns
    if columns is not None:
        of_nodes = columns() if no_kernels is None else {}
    return placed_stores(edges, of_nodes, request, memory, conditions, machine)


def names_of(graph: Graph) -> Names:
    """Return the users' ids, class names and units of a graph, from its folder or its servers.

    Ids are read when they are looked up. A graph in memory has the names of the folder that it was made from.
    """
    if graph.servers is not None:
        return remote_names(graph.servers)
    return Names.of(graph.folder or graph.origin)


def open_ids(path: str | os.PathLike[str], node_type: NodeType) -> OwnIds:
    """Open the ids of a node type in milliseconds; data is read at the first lookup.

    Nodes of a partitioned graph have the node numbers of the partitioned folder.

    Args:
        path: The graph folder.
        node_type: The node type.
    Returns:
        The ids, with lookup in both directions.
    Raises:
        ValueError: The type does not exist, or its ids are not stored.
    Example:
        >>> nodes = {"user": khop.NodeTable(ids=["ann", "bob"])}
        >>> khop.write_graph(tmp / "graph", nodes, {}).name
        'graph'
        >>> khop.open_ids(tmp / "graph", "user").rows(["bob", "eve"])
        array([ 1, -1])
    """
    folder = path_of("path", path)
    if not is_partitioned(folder):
        newest = current_folder(folder)
        return ids_of(newest, open_manifest(newest, Contents.NOTHING)[0], node_type)
    book = read_book(folder)
    if node_type not in book.offsets:
        raise ValueError(f"no node type {node_type!r}; there are {list(book.offsets)}")
    return ids_in(folder, book.wholes, node_type, book.offsets[node_type][-1])


WIDTH = 100  # of a line; the rest is replaced by "..."


def graph_text(graph: Graph) -> str:
    """Return five lines: location, nodes, edges, columns and splits, without reading arrays."""
    schema = graph.schema
    servers = graph.servers
    place = "in memory" if servers is None else f"on servers {', '.join(servers.addresses)}"
    if graph.folder is not None:
        place = f"of {graph.folder.path}"
    nodes = [f"{node_type} {graph.topology.num_nodes(node_type):,}" for node_type in schema.node_types]
    edges = [_counted(graph, edge_type) for edge_type in schema.edge_types]
    columns = [f"{_type(t)}: {_columns(of_type)}" for t, of_type in schema.columns.items() if of_type]
    sizes = [
        f"{split} " + " + ".join(f"{ids.numel():,} {node_type}" for node_type, ids in by_type.items())
        for split in graph.split_names
        for by_type in [graph.split(split)]
    ]
    return "\n".join(
        [
            f"khop.Graph {place}",
            _line("nodes  ", nodes, ", "),
            _line("edges  ", edges, ", "),
            _line("columns", columns, "; "),
            _line("splits ", sizes, ", "),
        ]
    )


def _line(what: str, parts: list[str], separator: str) -> str:
    """Return as many parts as fit, or at least the beginning of the first."""
    text = f"  {what}  {separator.join(parts) or 'none'}"
    if len(text) <= WIDTH:
        return text
    kept = text[: WIDTH - 4].rpartition(separator)[0]
    has_one = len(kept) > len(f"  {what}  ")
    return f"{kept}{separator}..." if has_one else f"{text[: WIDTH - 4]} ..."


def _counted(graph: Graph, edge_type: EdgeType) -> str:
    """Return an edge type, with its number of edges if it is known in this process."""
    if graph.folder is not None:
        return f"{_type(edge_type)} {graph.folder.num_edges(edge_type):,}"
    try:
        return f"{_type(edge_type)} {graph.topology.num_edges(edge_type):,}"
    except Unsupported:
        return _type(edge_type)


def _type(type_: NodeType | EdgeType) -> str:
    return type_ if isinstance(type_, str) else " ".join(type_)


def _columns(specs: Mapping[str, ColumnSpec]) -> str:
    return ", ".join(f"{name} {_dtype(spec)}" for name, spec in specs.items())


def _dtype(spec: ColumnSpec) -> str:
    shape = f"[{', '.join(map(str, spec.shape))}]" if spec.shape else ""
    if spec.sparse_width is not None:
        return f"sparse float32[{spec.sparse_width}]"
    classes = f" ({spec.num_classes} classes)" if spec.num_classes else ""
    return f"{spec.dtype}{shape}{classes}"
