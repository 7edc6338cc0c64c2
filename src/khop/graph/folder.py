"""An open graph folder: types are known at once, arrays are mapped on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor

from khop.arguments import path_of
from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.manifest import Contents, Manifest, open_manifest
from khop.graph.npy import ArrayEntry, map_array
from khop.graph.sparse_rows import map_sparse_array
from khop.kernels.checks import check_ids
from khop.kernels.csc import Csc
from khop.kernels.memory import memory_limit_bytes
from khop.schema import EdgeType, NodeType, Schema

ORIGINAL_ID = "original_id"


class Folder(Protocol):
    """A graph on disk, whole or partitioned: the properties of the whole graph."""

    @property
    def path(self) -> Path:
        """Absolute path of the folder."""
        ...

    @property
    def schema(self) -> Schema:
        """Types of the graph, with their columns."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph. Equal graphs have equal fingerprints, at any path."""
        ...

    @property
    def arrays(self) -> Mapping[str, ArrayEntry]:
        """Primary arrays on this machine, by file relative to `path`."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        ...

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type."""
        ...

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Return every column of every type, over all partitions. Edge columns are in CSC order."""
        ...

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits; each belongs to at least one node type."""
        ...

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """Return the int64 node ids of a split, for each node type that has the split."""
        ...

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the int64 ids from before nodes were renumbered; None if they never were."""
        ...


@dataclass(frozen=True, eq=False)
class GraphFolder:
    """A graph on disk, mapped copy-on-write: processes share the pages, and the files never change.

    Pickles as its path. Threads may share it.
    """

    path: Path  # absolute: arrays are mapped on first use, and the process may change its directory before
    schema: Schema
    fingerprint: str  # equal for equal graphs, at any path
    manifest: Manifest = field(repr=False)
    contents: Contents = Contents.ALL  # the contents that must be present
    absent: frozenset[str] = frozenset()  # files of the graph that are absent
    _mapped: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _mapped_sparse: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def arrays(self) -> Mapping[str, ArrayEntry]:
        """Arrays of graph.json that are present, by file."""
        return {file: entry for file, entry in self.manifest.arrays.items() if file not in self.absent}

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.manifest.node(node_type).count

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type."""
        return self.manifest.edge(edge_type).count

    def csc(self, edge_type: EdgeType) -> Csc:
        """Return the edges of a type by destination, mapped."""
        edge = self.manifest.edge(edge_type).type
        indptr, indices = (layout.edge_array(edge, name) for name in ("indptr", "indices"))
        return Csc(
            self._map(indptr),
            self._map(indices),
            self.manifest.num_sources(edge[0]),
            str((self.path / indptr).parent),
        )

    def edge_id(self, edge_type: EdgeType) -> Tensor | None:
        """Return the input position of each edge, in CSC order, int32 or int64; None if it was not stored."""
        edge = self.manifest.edge(edge_type)
        return self._map(layout.edge_array(edge.type, "edge_id")) if edge.edge_id else None

    def edge_times(self, edge_type: EdgeType) -> Tensor | None:
        """Return the int64 (edges) times of the edges of a partition, by the column that rows are sorted by.

        An edge's time is the later of its own time and the time of its source. None if the column of the
        edges already has these times.
        """
        edge = self.manifest.edge(edge_type)
        return self._map(layout.edge_array(edge.type, "times")) if edge.times else None

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Return every column that is present, by type, mapped. Edge columns are in CSC order."""
        return {
            type_: {name: self._map(file) for name, file in of_type.items()}
            for type_, of_type in self._column_files().items()
        }

    def feature_columns(
        self, room_bytes: int | None = None
    ) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Return every column that is present, by type, mapped for gathering rows by id.

        If the folder does not fit in `room_bytes`, its largest columns are mapped for reads of single rows.
        The other columns and the edges then stay in memory. The default is three quarters of the memory that
        this process may use.
        """
        if room_bytes is None:
            room_bytes = memory_limit_bytes() // 4 * 3
        sparse = self._too_large(room_bytes)
        return {
            type_: {
                name: self._map_sparse(file) if file in sparse else self._map(file)
                for name, file in of_type.items()
            }
            for type_, of_type in self._column_files().items()
        }

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, in the order they were given; each belongs to at least one node type."""
        return tuple(dict.fromkeys(name for node in self.manifest.nodes for name in node.splits))

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """Return the int64 node ids of a split, for each node type that has the split."""
        if name not in self.split_names:
            raise ValueError(f"{self.path}: no split {name!r}; there are {list(self.split_names)}")
        having = [node.type for node in self.manifest.nodes if name in node.splits]
        files = {node_type: layout.node_split(node_type, name) for node_type in having}
        found = {node_type: self._map(file) for node_type, file in files.items()}
        for node_type, ids in found.items():
            check_split_ids(self.path / files[node_type], ids, self.num_nodes(node_type))
        return found

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the column "original_id", int64: ids before renumbering; None if never renumbered."""
        node = self.manifest.node(node_type)
        return self._map(layout.node_column(node.type, ORIGINAL_ID)) if ORIGINAL_ID in node.columns else None

    def __reduce__(self) -> tuple[Callable[..., GraphFolder], tuple[Path, Contents]]:
        return open_folder, (self.path, self.contents)

    def _column_files(self) -> dict[NodeType | EdgeType, dict[str, str]]:
        """Return the files of the columns that are present, by type and name."""
        files: dict[NodeType | EdgeType, dict[str, str]] = {
            node.type: {name: layout.node_column(node.type, name) for name in node.columns}
            for node in self.manifest.nodes
        }
        for edge in self.manifest.edges:
            files[edge.type] = {name: layout.edge_column(edge.type, name) for name in edge.columns}
        return {
            type_: {name: file for name, file in of_type.items() if file not in self.absent}
            for type_, of_type in files.items()
        }

    def _too_large(self, room_bytes: int) -> frozenset[str]:
        """Return the largest columns; without them the rest of the folder fits in `room_bytes`."""
        bytes_of = {
            file: entry.data_bytes for file, entry in self.manifest.arrays.items() if file not in self.absent
        }
        columns = [file for of_type in self._column_files().values() for file in of_type.values()]
        excess = sum(bytes_of.values()) - room_bytes
        too_large = set()
        for file in sorted(columns, key=lambda file: (-bytes_of[file], file)):
            if excess <= 0:
                break
            too_large.add(file)
            excess -= bytes_of[file]
        return frozenset(too_large)

    def _map_sparse(self, file: str) -> Tensor:
        if file not in self._mapped_sparse:
            self._mapped_sparse[file] = map_sparse_array(self.path / file, self.manifest.arrays[file])
        return self._mapped_sparse[file]

    def _map(self, file: str) -> Tensor:
        if file not in self._mapped:
            self._mapped[file] = map_array(self.path / file, self.manifest.arrays[file])
        return self._mapped[file]


def check_split_ids(file: Path, ids: Tensor, num_nodes: int) -> None:
    """Raise ValueError that names the file of a split and the row that holds no node id."""
    try:
        check_ids(ids, num_nodes, "node")
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {REMEDY}") from error


def open_folder(path: str | os.PathLike[str], contents: Contents = Contents.ALL) -> GraphFolder:
    """Open a graph folder in milliseconds.

    Reads graph.json and compares sizes and headers of all files with it. No data is read, so a flipped bit
    inside an array is not noticed; `khop verify` finds it. Files outside `contents` may be absent.
    """
    folder = path_of("path", path)
    manifest, fingerprint, absent = open_manifest(folder, contents)
    return GraphFolder(folder.absolute(), manifest.schema(), fingerprint, manifest, contents, absent)
