"""A graph with its columns, opened from a folder or made in memory, and its distribution over ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from khop.api.placed_parts import PartsTarget, placed_parts
from khop.arguments import graph_of, instance_of, one_of, path_of, shown
from khop.datasets.builtin import named_folder
from khop.distributed.machine_ranks import MachineRanks
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.placement import PartitionOptions, stores_of
from khop.distributed.rank_rows import RankRows
from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.exchange.lanes import Lanes
from khop.exchange.row_wire import Wire
from khop.features.store import FeatureStore
from khop.features.table import NO_COLUMNS
from khop.forks import check_fork
from khop.graph.added_edges import with_edges
from khop.graph.atomic import refuse_existing
from khop.graph.csc_graph import CscGraph, open_csc_graph
from khop.graph.damage import refuse_damage
from khop.graph.feature_columns import large_columns
from khop.graph.folder import Folder, GraphFolder, open_folder
from khop.graph.layout import is_partitioned
from khop.graph.needs import Need
from khop.graph.progress import ProgressCallback
from khop.graph.save import save_graph
from khop.graph.store import BatchServers, DrawsHops, GraphStore
from khop.graph.tables import EdgeTable
from khop.graph.text import graph_text
from khop.kernels.choice import why_no_kernels
from khop.kernels.csc import Csc
from khop.loading.byte_size import byte_size
from khop.loading.device_memory import memory_of
from khop.loading.device_placement import AUTO, DevicePlacement, StorePlace
from khop.loading.folder_features import folder_features
from khop.loading.memory_plan import WorkSizes
from khop.loading.placed_stores import Conditions, PlacedStores, placed_stores
from khop.partition.placements import LANES, Placement
from khop.rules.rule import Hop
from khop.runtime.group import this_group
from khop.sampling.listed import ListedNodes, ids_here
from khop.schema import EdgeType, EdgeTypeName, NodeType, Schema, by_edge_type, edge_type_of


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with its columns: a graph store and the operations for users. Threads may share it.

    The graph of a folder pickles as the folder's path and the options for ranks. Unpickling opens the folder
    again, collectively if the graph is partitioned across ranks.
    """

    topology: GraphStore
    features: FeatureStore
    folder: Folder | None = None  # None for a graph in memory
    # Of a graph without a folder.
    splits: Mapping[str, Mapping[NodeType, Tensor | ListedNodes]] = field(default_factory=dict)
    partition_options: PartitionOptions | None = None  # distribution of a partitioned folder over ranks
    origin: Folder | None = None  # for a graph in memory: the folder of arrays that it shares
    stores: PlacedStores | None = None  # copies for the kernels of a GPU; None: the CPU makes all batches
    lanes: Lanes | None = None  # connections to ranks that hold other parts; None if all of it is local
    rank_edges: PartitionedGraph | None = None  # the topology, if ranks hold the edges in parts
    rank_rows: RankRows | None = None  # rows of this rank on its GPU, which ranks exchange between GPUs

    @classmethod
    def of(cls, store: GraphStore) -> Graph:
        """Return a graph of these edges without columns; a `Graph` is returned as it is."""
        graph_of("graph", store)
        return store if isinstance(store, Graph) else cls(store, NO_COLUMNS)

    @property
    def schema(self) -> Schema:
        """Node types, edge types and their columns."""
        return self.topology.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.topology.num_nodes(node_type)

    @property
    def is_collective(self) -> bool:
        """True if a hop asks other ranks: every rank then makes the same number of hops."""
        return self.topology.is_collective

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: that of the topology's edges."""
        return self.topology.frontier_device

    @property
    def servers(self) -> BatchServers | None:
        """The servers that make batches of this graph; None: this process makes them."""
        return self.topology.servers

    def num_edges(self, edge_type: EdgeTypeName) -> int:
        """Return the number of edges of a type, over all partitions."""
        return self.topology.num_edges(edge_type_of(edge_type))

    def in_degrees(self, edge_type: EdgeTypeName, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some destinations, int64 (nodes), by the topology."""
        return self.topology.in_degrees(edge_type_of(edge_type), nodes)

    def edge_values(self, edge_type: EdgeTypeName, column: str, edges: Tensor) -> Tensor:
        """Return the numbers of some edges by their positions, by the topology."""
        return self.topology.edge_values(edge_type_of(edge_type), column, edges)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the ids before renumbering, int64 (nodes), which key all draws; None if never renumbered."""
        return self.topology.original_ids(node_type)

    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Return the first node id of each partition, then the end of the last one.

        A graph without partitions counts as one partition.
        """
        return self.topology.partition_bounds(node_type)

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that draws need. Collective if the graph is."""
        self.topology.prepare(needs)

    @property
    def device(self) -> torch.device:
        """The device of batches: of the GPU that the graph is placed on, else the CPU."""
        return torch.device("cpu") if self.stores is None else self.stores.device

    def on(
        self,
        device: torch.device | str = "cuda",
        *,
        topology: StorePlace | str = AUTO,
        columns: StorePlace | str | Mapping[str, StorePlace | str] = AUTO,
        cache: int | str | Mapping[str, int | str] = 0,
        beside: int | str = "2GiB",
    ) -> Graph:
        """Return the graph for batches on a GPU, with its stores placed in device, pinned or host memory.

        "cuda" is the GPU of this rank. `topology` is "device", "pinned" (host memory that the GPU reads) or
        "host" (the CPU samples). `columns` is one of these, "mapped" (the graph's files) or "disk" (files
        read row by row) for all columns of nodes, or a mapping from column names. "auto" is chosen by khop:
        today the CPU. Requested stores must leave `beside` bytes to model, optimizer and batches. `placement`
        says what was chosen and why. The device "cpu" takes columns as "host", "mapped" or "disk".
        `cache` is the GPU memory for rows of a column that is not there: "4GB", or "20%" of the column.
        Columns that the CPU gathers share one cache, as large as theirs together.
        Of a graph partitioned across ranks, columns on GPUs are the rows of each rank, which GPUs exchange.

        The placed graph pickles as this graph and the request. On several ranks of a machine the call is
        collective, and they share pinned stores. docs/gpu.md says what is tested.
        """
        check_fork()
        request = DevicePlacement.of(device, topology, columns, cache)
        return placed_on(self, request, WorkSizes(pool_bytes=byte_size(beside, "beside")))

    @property
    def placement(self) -> str:
        """The memory of every store, and why it was chosen, in one line."""
        return "cpu: all stores are read by the CPU" if self.stores is None else self.stores.line

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node, by the topology."""
        return self.topology.sample_hop(frontier, hop, key)

    def for_hops(self, hops: Sequence[Hop]) -> DrawsHops:
        """Return the object that carries out these hops, chosen by the topology."""
        return self.topology.for_hops(hops)

    def csc(self, edge_type: EdgeTypeName) -> Csc:
        """Return the edges of a type by destination."""
        return self.topology.local_csc(edge_type_of(edge_type))

    def local_csc(self, edge_type: EdgeTypeName) -> Csc:
        """Return the edges of a type by destination, as `csc` does."""
        return self.csc(edge_type)

    def in_one_piece(self, what: str) -> CscGraph:
        """Return the topology with all its edges in this process, partitions joined.

        `what` names the caller in the error.
        """
        return self.topology.in_one_piece(what)

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        """Return the edges alone, with only some of them; see GraphStore."""
        return self.topology.keeping(kept)

    def with_edges(self, edges: Mapping[EdgeType, EdgeTable] | Mapping[str, EdgeTable]) -> Graph:
        """Return the graph, in memory, with additional edge types. Existing arrays are shared, not copied."""
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
        """Draw destinations for the sources of links, by the topology."""
        return self.topology.sample_negatives(edge_type_of(edge_type), negatives, positives, key)

    def only(self, edge_types: Collection[EdgeTypeName]) -> Graph:
        """Return the graph, in memory, with only these edge types and the node types at their ends."""
        if isinstance(edge_types, str) or not isinstance(edge_types, Collection):
            raise ValueError(f"edge types {shown(edge_types)}: must be a list, as [{edge_types!r}]")
        kept = [edge_type_of(edge_type) for edge_type in edge_types]
        rank_edges = None if self.rank_edges is None else self.rank_edges.only(kept)
        topology = rank_edges or self.topology.only(kept)
        origin = self.folder or self.origin
        return Graph(topology, self.features, origin=origin, lanes=self.lanes, rank_edges=rank_edges)

    @property
    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Every column of every type, over all partitions; mapped for a folder. Edge columns in CSC order."""
        if self.folder is not None:
            return self.folder.columns()
        if self.features.is_collective and not self.is_collective:
            return self.in_one_piece("columns").columns  # of all partitions: local, as the edges are
        return self.features.whole_columns()

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits; each belongs to at least one node type."""
        return tuple(self.splits) if self.folder is None else self.folder.split_names

    def split(self, name: str) -> Mapping[NodeType, Tensor | ListedNodes]:
        """Return the int64 node ids of a split, for each node type that has the split.

        For a graph on servers, the lists stay there: a loader takes `khop.ListedNodes` as it takes ids.
        """
        if self.folder is not None:
            return self.folder.split(name)
        if name not in self.splits:
            raise ValueError(f"no split {name!r}; there are {list(self.splits)}")
        return self.splits[name]

    def save(self, path: str | os.PathLike[str], *, notice: ProgressCallback | None = None) -> Path:
        """Write the graph with its columns and splits as a folder, and return the path; see `write_graph`.

        ValueError if a file that its arrays are mapped from is damaged.
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
    """Write a graph as a folder; the files that it is mapped from have been checked."""
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
    """Open a graph folder, or a built-in graph by its name as text ("debian"), in milliseconds.

    After appends, it is the newest snapshot; GRAPH/snapshots has earlier ones. An open graph stays as it is.
    Files are mapped. Batches of a partitioned folder have the same bits as batches of the graph before
    partitioning, except for the ids. The column "original_id" has the old ids.

    A single process opens all partitions. Each of several ranks opens some of them and asks other ranks for
    columns. With `placement` "all" it asks for edges too; with "whole" each rank opens all partitions.
    `lanes` batches are processed at once. Rows are sent as stored, or rounded to `wire` "float16" or "int8".

    On several ranks, opening a partitioned folder is collective, and so are the epochs of its loaders. If the
    folder is not partitioned, `lanes` and `wire` have no effect, and a warning says so.
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
            f"{folder}: {' and '.join(given)}: no effect, the graph is not partitioned. Leave out lanes and "
            "wire, or partition the graph by `khop partition`",
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
            rank_edges=stores.rank_edges,
        )
    folder = open_folder(path)
    return Graph(open_csc_graph(folder), folder_features(folder), folder)


def placed_on(graph: Graph, request: DevicePlacement, work: WorkSizes) -> Graph:
    """Return the graph with its stores placed on a GPU of this process, as `Graph.on` does."""
    is_cpu = request.device == "cpu" and bool(request.columns)
    if graph.partition_options is not None or graph.is_collective:
        return _parts_placed_on(graph, request, work)
    folder = graph.folder if isinstance(graph.folder, GraphFolder) else None
    if is_cpu and folder is None:
        raise ValueError(
            f"columns on device {request.device!r}: the graph is in memory, not in a folder; leave columns "
            "out, or save the graph and open its folder"
        )
    if is_cpu:
        stores = PlacedStores.on_cpu(request, work, graph.schema.node_columns)
    else:
        stores = _placed_on_gpu(graph, folder, request, work)
    if folder is None:
        return replace(graph, stores=stores)
    places = {n: place for n, place in stores.plan.columns.items() if request.place_of(n) is not None}
    return replace(graph, stores=stores, features=folder_features(folder, places))


def _parts_placed_on(graph: Graph, request: DevicePlacement, work: WorkSizes) -> Graph:
    is_cpu = request.device == "cpu" and bool(request.columns)
    memory = None if is_cpu else memory_of(request.device)
    no_kernels = None if memory is None else why_no_kernels(memory.device.index)
    wire = Wire.STORED if graph.partition_options is None else graph.partition_options.wire
    target = PartsTarget(graph.lanes, wire, memory, no_kernels, work)
    stores, features, rank_rows = placed_parts(graph.folder, request, target)
    return replace(graph, stores=stores, features=features or graph.features, rank_rows=rank_rows)


def _placed_on_gpu(
    graph: Graph, folder: GraphFolder | None, request: DevicePlacement, work: WorkSizes
) -> PlacedStores:
    memory = memory_of(request.device)
    large = {} if folder is None else large_columns(folder)
    conditions = Conditions(
        work,
        no_kernels=why_no_kernels(memory.device.index),
        is_mapped=folder is not None,
        on_disk=frozenset(name for of_type in large.values() for name in of_type),
    )
    edges = graph.in_one_piece("stores on a device")
    group = this_group()
    machine = MachineRanks(group) if group.local_world_size > 1 else None
    return placed_stores(edges, graph.columns, request, memory, conditions, machine)
