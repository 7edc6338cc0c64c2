"""An open graph folder: types are known at once, arrays are mapped on first use."""

from __future__ import annotations

import json
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
from khop.graph.snapshots import current_folder, folder_with
from khop.kernels.checks import check_ids
from khop.kernels.csc import Csc
from khop.schema import EdgeType, NodeType, Schema

ORIGINAL_ID = "original_id"


class StoredFiles(Protocol):
    """The files of a graph on disk, whole or partitioned."""

    @property
    def path(self) -> Path:
        """Absolute path of the folder."""
        ...

    @property
    def arrays(self) -> Mapping[str, ArrayEntry]:
        """Primary arrays on this machine, by file relative to `path`."""
        ...

    @property
    def documents(self) -> Mapping[str, str]:
        """JSON documents beside the arrays: sha256 by name."""
        ...


class Folder(StoredFiles, Protocol):
    """A graph on disk, whole or partitioned: the properties of the whole graph."""

    @property
    def schema(self) -> Schema:
        """Types of the graph, with their columns."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph. Equal graphs have equal fingerprints, at any path."""
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
    arrays: Mapping[str, ArrayEntry]  # those of graph.json that are present, by file
    documents: Mapping[str, str]  # JSON files beside the arrays: sha256 by name
    contents: Contents = Contents.ALL  # the contents that must be present
    _mapped: dict[str, Tensor] = field(default_factory=dict, repr=False)

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
            self.array(indptr),
            self.array(indices),
            self.manifest.num_sources(edge[0]),
            str((self.path / indptr).parent),
        )

    def edge_id(self, edge_type: EdgeType) -> Tensor | None:
        """Return the input position of each edge, in CSC order, int32 or int64; None if it was not stored."""
        edge = self.manifest.edge(edge_type)
        return self.array(layout.edge_array(edge.type, "edge_id")) if edge.edge_id else None

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Return every column that is present, by type, mapped. Edge columns are in CSC order."""
        return {
            type_: {name: self.array(file) for name, file in of_type.items() if file in self.arrays}
            for type_, of_type in self.manifest.column_files().items()
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
        found = {node_type: self.array(file) for node_type, file in files.items()}
        for node_type, ids in found.items():
            check_split_ids(self.path / files[node_type], ids, self.num_nodes(node_type))
        return found

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the column "original_id", int64: ids before renumbering; None if never renumbered."""
        node = self.manifest.node(node_type)
        return self.array(layout.node_column(node.type, ORIGINAL_ID)) if ORIGINAL_ID in node.columns else None

    def __reduce__(self) -> tuple[Callable[..., GraphFolder], tuple[Path, Contents, str]]:
        return _opened_again, (self.path, self.contents, self.fingerprint)

    def array(self, file: str) -> Tensor:
        """Return an array of the folder, mapped."""
        if file not in self._mapped:
            try:
                mapped = map_array(self.path / file, self.manifest.arrays[file])
            except (OSError, ValueError):
                refuse_replaced(self)
                raise
            refuse_replaced(self)  # last: the file that was mapped is in the folder that was opened
            self._mapped[file] = mapped
        return self._mapped[file]


def check_split_ids(file: Path, ids: Tensor, num_nodes: int) -> None:
    """Raise ValueError that names the file of a split and the row that holds no node id."""
    try:
        check_ids(ids, num_nodes, "node")
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {REMEDY}") from error


def refuse_replaced(folder: StoredFiles) -> None:
    """Raise ValueError if `khop compact` has replaced or erased a graph folder since it was opened."""
    if not isinstance(folder, GraphFolder):
        return
    try:
        found = json.loads((folder.path / layout.MANIFEST).read_bytes()).get("fingerprint")
    except (OSError, ValueError, AttributeError):
        if folder.path.is_dir() or folder.path.parent.name != layout.SNAPSHOTS:
            return  # damaged, moved or removed: the caller's error names the file
        found = None
    if found != folder.fingerprint:
        graph = folder.path if found else folder.path.parent.parent
        raise ValueError(
            f"{graph}: was compacted after this process opened it (snapshot {folder.fingerprint[:16]}); open "
            "it again"
        )


def open_folder(path: str | os.PathLike[str], contents: Contents = Contents.ALL) -> GraphFolder:
    """Open a graph folder in milliseconds; after appends, its newest snapshot.

    Reads graph.json and compares sizes and headers of all files with it. No data is read, so a flipped bit
    inside an array is not noticed; `khop verify` finds it. Files outside `contents` may be absent.
    """
    folder = current_folder(path_of("path", path))
    manifest, fingerprint, absent = open_manifest(folder, contents)
    present = {file: entry for file, entry in manifest.arrays.items() if file not in absent}
    documents = manifest.documents
    return GraphFolder(
        folder.absolute(), manifest.schema(), fingerprint, manifest, present, documents, contents
    )


def _opened_again(path: Path, contents: Contents, fingerprint: str) -> GraphFolder:
    """Open the same snapshot in another process, also if rows were appended since."""
    there = folder_with(path, fingerprint)
    if not there.is_dir() and there.parent.name == layout.SNAPSHOTS:
        there = there.parent.parent  # compacted: the newest snapshot is the graph itself
    folder = open_folder(there, contents)
    if folder.fingerprint != fingerprint:
        raise ValueError(
            f"{there}: was compacted or written again after it was opened, and the snapshot "
            f"{fingerprint[:16]} was erased; open it again"
        )
    return folder
