"""What a training loop of one's own calls. The only part that knows of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from khop.arguments import instance_of, one_of, path_of, shown
from khop.datasets.builtin import named_folder
from khop.distributed.group import this_group
from khop.distributed.lanes import Lanes
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.placement import PartitionOptions, stores_of
from khop.distributed.placements import LANES, Placement
from khop.distributed.row_wire import Wire
from khop.draw import DrawKey, DrawnNegatives, FrontierByType, Hop, NeighborsByType, Positives
from khop.features.store import FeatureStore
from khop.features.table import FeatureTable, with_columns
from khop.graph.build import EdgeTable
from khop.graph.csc_graph import CscGraph
from khop.graph.folder import Folder, open_folder
from khop.graph.layout import is_partitioned
from khop.graph.progress import ProgressCallback
from khop.graph.save import save_graph
from khop.graph.store import GraphStore, negative_store, original_ids, part_bounds
from khop.graph.text import graph_text
from khop.kernels.csc import Csc
from khop.loading.forks import watch_forks
from khop.partition.local_partition_features import whole_columns
from khop.partition.local_partition_graph import LocalPartitionGraph
from khop.schema import EdgeType, EdgeTypeName, NodeType, Schema, by_edge_type, edge_type_of


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with its columns: a graph store and all that a user asks of it. Threads may share it.

    A folder's pickles as its path and how ranks share it, and is opened again, collectively where that is so.
    """

    topology: GraphStore
    features: FeatureStore
    folder: Folder | None = None  # None: made in memory
    splits: Mapping[str, Mapping[NodeType, Tensor]] = field(default_factory=dict)  # of a graph in memory
    partition_options: PartitionOptions | None = None  # how ranks share a folder of parts
    origin: Folder | None = None  # of a graph in memory: the folder whose arrays it shares

    def __post_init__(self) -> None:
        watch_forks()

    @property
    def schema(self) -> Schema:
        """Node types, edge types and their columns."""
        return self.topology.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are."""
        return self.topology.num_nodes(node_type)

    def part_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Where the nodes of each part begin, and where those of the last one end; often there is one."""
        return part_bounds(self.topology, node_type)

    @property
    def lanes(self) -> Lanes | None:
        """How what other ranks hold of the graph is asked for; None where all of it is here."""
        found = getattr(self.features, "lanes", None) or getattr(self.topology, "lanes", None)
        assert found is None or isinstance(found, Lanes)
        return found

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """int64 (nodes), of types that were renumbered: the ids before. Draws are keyed by them."""
        found = {t: original_ids(self.topology, t) for t in self.schema.node_types}
        return {t: ids for t, ids in found.items() if ids is not None}

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """The topology's: draw in-edges of every frontier node."""
        return self.topology.sample_hop(frontier, hop, key)

    def csc(self, edge_type: EdgeTypeName) -> Csc:
        """The edges of a type by destination."""
        edge_type = edge_type_of(edge_type)
        return self.in_one_piece(f"the edges of {edge_type}").csc(edge_type)

    def with_edges(self, edges: Mapping[EdgeType, EdgeTable] | Mapping[str, EdgeTable]) -> Graph:
        """The same graph, in memory, with further edge types; what it had is shared and not copied."""
        edges = by_edge_type(edges)
        for edge_type, table in edges.items():
            instance_of(f"edge type {edge_type}:", table, EdgeTable, "give a khop.EdgeTable")
        topology = self.in_one_piece("with_edges").with_edges(edges)
        features = with_columns(self.features, {t: topology.columns.get(t, {}) for t in edges})
        splits = {name: self.split(name) for name in self.split_names}
        return Graph(topology, features, splits=splits, origin=self.folder or self.origin)

    def sample_negatives(
        self, edge_type: EdgeTypeName, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """The topology's: draw destinations for the sources of links."""
        store, edge_type = negative_store(self.topology, negatives), edge_type_of(edge_type)
        return store.sample_negatives(edge_type, negatives, positives, key)

    def only(self, edge_types: Collection[EdgeTypeName]) -> Graph:
        """The same graph, in memory, with no other edge types, and the node types at their ends."""
        if isinstance(edge_types, str) or not isinstance(edge_types, Collection):
            raise ValueError(f"edge types {shown(edge_types)}: must be a list, as [{edge_types!r}]")
        topology, kept = self.topology, [edge_type_of(edge_type) for edge_type in edge_types]
        if not isinstance(topology, PartitionedGraph):
            topology = self.in_one_piece("only")
        return Graph(topology.only(kept), self.features, origin=self.folder or self.origin)

    @property
    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Every column of every type, whole; of a folder mapped. Edge columns are in CSC order."""
        if self.folder is not None:
            return self.folder.columns()
        if isinstance(self.topology, CscGraph) and self.lanes is not None:
            return self.topology.columns  # of all parts: they lie here, as the edges do
        return whole_columns(self.features)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that some node type has."""
        return tuple(self.splits) if self.folder is None else self.folder.split_names

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """The int64 node ids of a split, of each node type that has it."""
        if self.folder is not None:
            return self.folder.split(name)
        if name not in self.splits:
            raise ValueError(f"no split {name!r}; there are {list(self.splits)}")
        return self.splits[name]

    def save(self, path: str | os.PathLike[str], *, notice: ProgressCallback | None = None) -> Path:
        """Write the graph as a folder, with its columns and splits, and give its path: see `write_graph`.

        ValueError where a file that its arrays are mapped from is damaged.
        """
        splits = {name: self.split(name) for name in self.split_names}
        origin = self.folder or self.origin
        return save_graph(
            path_of("path", path), self.in_one_piece("save"), self.columns, splits, notice, origin=origin
        )

    def to_pyg(self) -> Any:  # noqa: ANN401
        """A torch_geometric `Data` where there is one node type and one edge type, else a `HeteroData`.

        Columns are shared; edges stand by destination; a split is a mask, `<split>_mask`.
        """
        # Imported on use: khop works without torch_geometric.
        return import_module("khop.pyg.convert").graph_to_pyg(self)

    def __reduce__(self) -> tuple[Callable[..., Graph], tuple[object, ...]]:
        if self.folder is None:
            return Graph, (self.topology, self.features, None, self.splits, None, self.origin)
        return _opened, (self.folder.path, self.partition_options)

    def __repr__(self) -> str:
        return graph_text(self)

    def in_one_piece(self, what: str) -> CscGraph:
        """The topology where its edges lie in this process, of parts put together; `what` wants it so."""
        if isinstance(self.topology, LocalPartitionGraph):
            return self.topology.joined()
        if not isinstance(self.topology, CscGraph):
            raise ValueError(
                f"{what}: the edges of a {type(self.topology).__name__} do not lie in this process; open the "
                'graph with placement="features", or in one process'
            )
        return self.topology


def open_graph(
    path: str | os.PathLike[str],
    *,
    placement: Placement | str = Placement.FEATURES,
    lanes: int = LANES,
    wire: Wire | str = Wire.STORED,
) -> Graph:
    """Open a graph folder, or a built-in graph by its name as text ("debian"), in milliseconds.

    Files are mapped. Batches of a folder of parts have the bits of the graph before it was cut, by other ids;
    column "original_id" has the old ones. One process opens all parts. Each of several ranks opens some and
    asks others for columns, or with `placement` "all" for edges too; "whole" opens all parts on each. `lanes`
    batches are under way at once. Rows travel as stored, or rounded to `wire` "float16" or "int8".
    Collective, and so are then a loader's epochs, `break` included.
    """
    folder = named_folder(path if isinstance(path, str) else path_of("path", path))
    partition_options = PartitionOptions(
        one_of("placement", placement, Placement), lanes, one_of("wire", wire, Wire)
    )
    return _opened(folder, partition_options)


def _opened(path: str | os.PathLike[str], partition_options: PartitionOptions | None) -> Graph:
    if is_partitioned(path):
        partition_options = partition_options or PartitionOptions()
        return Graph(*stores_of(path, this_group(), partition_options), partition_options=partition_options)
    folder = open_folder(path)
    return Graph(CscGraph.open(folder), FeatureTable.of(folder.schema, folder.feature_columns()), folder)
