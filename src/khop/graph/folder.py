"""An open graph folder: its types are known immediately, its arrays are mapped on first use.

Small JSON documents are stored next to the arrays, with their checksums in graph.json. Arrays are verified
against their checksums before they are copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from khop.arguments import path_of
from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.atomic import Meter, ProgressCallback, naming
from khop.graph.manifest import INPUT, Contents, Manifest, open_manifest
from khop.graph.npy import ArrayEntry, file_checksum, flush, map_array, map_pages, torch_dtype
from khop.graph.snapshots import current_folder, folder_with
from khop.kernels.csc import Csc, check_ids
from khop.kernels.gather import RowFile
from khop.kernels.memory import expect_sparse_reads, free_memory_bytes
from khop.schema import EdgeType, NodeType, Schema

ORIGINAL_ID = "original_id"


class Folder(Protocol):
    """A graph on disk, whole or partitioned: its files, and the properties of the whole graph."""

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
        """JSON documents next to the arrays: sha256 by name."""
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
    def row_order(self) -> Mapping[EdgeType, str]:
        """Column by which the rows of an edge type are sorted; types in the input order are left out."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        ...

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type."""
        ...

    def edge_id(self, edge_type: EdgeType) -> Tensor | None:
        """Return the input position of each edge, in CSC order, int32 or int64; None if it was not stored."""
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
        """Return the original ids, int64; None if nodes were never renumbered."""
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
    documents: Mapping[str, str]  # JSON files next to the arrays: sha256 by name
    contents: Contents = Contents.ALL  # the contents that must be present
    _mapped: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def row_order(self) -> Mapping[EdgeType, str]:
        """Column by which the rows of an edge type are sorted; types in the input order are left out."""
        return {edge.type: edge.row_order for edge in self.manifest.edges if edge.row_order != INPUT}

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
        """Names of the splits, in the given order; each belongs to at least one node type."""
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
            refuse_replaced(self)  # last, to ensure that the mapped file belongs to the opened graph
            self._mapped[file] = mapped
        return self._mapped[file]


def check_split_ids(file: Path, ids: Tensor, num_nodes: int) -> None:
    """Raise ValueError that names the file of a split and the row without a valid node id."""
    try:
        check_ids(ids, num_nodes, "node")
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {REMEDY}") from error


def refuse_replaced(folder: Folder) -> None:
    """Raise ValueError if `khop compact` has replaced or erased a graph folder since it was opened."""
    if isinstance(folder, GraphFolder):
        refuse_other(folder.path, folder.fingerprint)


def refuse_other(path: Path, fingerprint: str) -> None:
    """Raise ValueError if the graph at `path` is not the one that was opened there."""
    try:
        found = json.loads((path / layout.MANIFEST).read_bytes()).get("fingerprint")
    except (OSError, ValueError, AttributeError):
        if path.is_dir() or path.parent.name != layout.SNAPSHOTS:
            return  # damaged, moved or removed: the caller's error names the file
        found = None
    if found != fingerprint:
        graph = path if found else path.parent.parent
        raise ValueError(
            f"{graph}: was compacted after this process opened it (snapshot {fingerprint[:16]}); open "
            "it again"
        )


def open_folder(path: str | os.PathLike[str], contents: Contents = Contents.ALL) -> GraphFolder:
    """Open a graph folder in milliseconds; after appends, its newest snapshot.

    Reads graph.json and compares sizes and headers of all files with it. Data are not read, so a flipped bit
    inside an array is not detected; `khop verify` detects it.

    Args:
        path: The folder.
        contents: Arrays that must be present, by default all.
    Returns:
        The open folder, with its schema, arrays, splits and fingerprint.
    Raises:
        ValueError: The folder is not a graph, or a file differs from graph.json.
    Example:
        >>> folder = khop.open_folder(khop.builtin_folder("debian"))
        >>> folder.num_edges(("package", "linked", "package"))
        590602
    """
    folder = current_folder(path_of("path", path))
    manifest, fingerprint, absent = open_manifest(folder, contents)
    present = {file: entry for file, entry in manifest.arrays.items() if file not in absent}
    documents = manifest.documents
    return GraphFolder(
        folder.absolute(), manifest.schema(), fingerprint, manifest, present, documents, contents
    )


def _opened_again(path: Path, contents: Contents, fingerprint: str) -> GraphFolder:
    """Open the same snapshot in another process, even if rows were appended since."""
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


def map_sparse_array(path: Path, entry: ArrayEntry) -> Tensor:
    """Map an array for random row reads from a file larger than memory; otherwise like `map_array`.

    Sequential reads are slow, because the kernel does not read ahead.
    """
    array, pages = map_pages(path, entry)
    if pages is not None:
        expect_sparse_reads(array, pages)
    return array


ColumnFiles = Mapping[NodeType | EdgeType, Mapping[str, str]]  # files relative to the folder, by column
Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
ON_DISK, IN_MEMORY = "disk", "host"  # places of columns; others are mapped


def feature_columns(folder: GraphFolder, room_bytes: int | None = None) -> Columns:
    """Return every column that is present, by type, mapped.

    The columns of `large_columns` are mapped for random row reads.
    """
    sparse = large_columns(folder, room_bytes)
    return {
        type_: {
            name: map_sparse_array(folder.path / file, folder.arrays[file])
            if name in sparse.get(type_, {})
            else folder.array(file)
            for name, file in of_type.items()
        }
        for type_, of_type in column_files(folder).items()
    }


def disk_columns(
    folder: GraphFolder, places: Mapping[str, str] | None = None, room_bytes: int | None = None
) -> Mapping[NodeType | EdgeType, Mapping[str, RowFile]]:
    """Open the files of columns that `places` keeps on disk, and of large columns without a place."""
    places, large = places or {}, large_columns(folder, room_bytes)
    return {
        t: {
            name: _row_file(folder, file)
            for name, file in of_type.items()
            if places.get(name, ON_DISK if name in large[t] else "") == ON_DISK
        }
        for t, of_type in column_files(folder).items()
    }


def copied_columns(columns: Columns, places: Mapping[str, str]) -> Columns:
    """Return columns, with copies of the node columns that `places` keeps in memory."""
    return {
        t: {
            name: column.clone() if isinstance(t, str) and places.get(name) == IN_MEMORY else column
            for name, column in of_type.items()
        }
        for t, of_type in columns.items()
    }


def column_files(folder: GraphFolder) -> ColumnFiles:
    """Return the file of every column that is present, by type."""
    return {
        type_: {name: file for name, file in of_type.items() if file in folder.arrays}
        for type_, of_type in folder.manifest.column_files().items()
    }


def large_columns(folder: GraphFolder, room_bytes: int | None = None) -> ColumnFiles:
    """Return the largest columns; the rest of the folder, with all edges, fits in `room_bytes`.

    The default is three quarters of the memory still available to this process.
    """
    room_bytes = free_memory_bytes() // 4 * 3 if room_bytes is None else room_bytes
    files = column_files(folder)
    large = _too_large(
        folder.arrays, [file for of_type in files.values() for file in of_type.values()], room_bytes
    )
    return {t: {name: file for name, file in of.items() if file in large} for t, of in files.items()}


def _too_large(arrays: Mapping[str, ArrayEntry], columns: Collection[str], room_bytes: int) -> set[str]:
    """Return the largest columns; without them the rest of the arrays fits in `room_bytes`."""
    excess = sum(entry.data_bytes for entry in arrays.values()) - room_bytes
    too_large = set()
    for file in sorted(columns, key=lambda file: (-arrays[file].data_bytes, file)):
        if excess <= 0:
            break
        too_large.add(file)
        excess -= arrays[file].data_bytes
    return too_large


def _row_file(folder: GraphFolder, file: str) -> RowFile:
    entry = folder.arrays[file]
    header = entry.bytes - entry.data_bytes
    return RowFile.open(folder.path / file, header, entry.shape[0], entry.shape[1:], torch_dtype(entry.dtype))


def write_documents(folder: Path, documents: Mapping[str, bytes]) -> dict[str, str]:
    """Write documents and flush them to disk; return the sha256 of each by name."""
    digests = {}
    for name, content in documents.items():
        if Path(name).name != name or not name.endswith(".json"):
            raise ValueError(f"document {name!r}: must be the name of a .json file, without folders")
        with naming(folder / name), (folder / name).open("wb") as file:
            file.write(content)
            flush(file)
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def read_document(folder: Path, name: str, sha256: str) -> Any:  # noqa: ANN401
    """Return the values of a document; ValueError if it is missing or differs from its checksum."""
    return json.loads(document_bytes(folder, name, sha256))


def document_bytes(folder: Path, name: str, sha256: str) -> bytes:
    """Return the content of a document; ValueError if it is missing or differs from its checksum."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path}: is missing; {REMEDY}")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path}: checksum differs from graph.json; {REMEDY}")
    return content


def documents_of(folder: Path, sha256: Mapping[str, str]) -> dict[str, bytes]:
    """Return the contents of documents by name, to write them again next to a changed graph."""
    return {name: document_bytes(folder, name, digest) for name, digest in sha256.items()}


DOCUMENT = "import.json"
LATER = "later"  # key of the record of later data: the encoders and the rows of its tables
TIME_SPLIT = "time_split"  # key of the cut-offs of a split by time


@dataclass(frozen=True)
class TimeCutOffs:
    """The first times of validation and of test, in the unit of the graph."""

    val: int
    test: int


def import_record(folder: Folder) -> Mapping[str, Any]:
    """Return the record of a graph folder, whole or partitioned, or {} if it has none.

    ValueError if it is damaged.
    """
    if DOCUMENT not in folder.documents:
        return {}
    refuse_replaced(folder)
    found: Mapping[str, Any] = read_document(folder.path, DOCUMENT, folder.documents[DOCUMENT])
    return found


def record_document(record: Mapping[str, Any]) -> bytes:
    """Return the document of a record."""
    return json.dumps(record, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def recorded_cut_offs(folder: Folder) -> TimeCutOffs | None:
    """Return the cut-offs that a graph folder, whole or partitioned, records; None if it records none."""
    found = import_record(folder).get(TIME_SPLIT)
    return None if found is None else TimeCutOffs(int(found["val"]), int(found["test"]))


STANDARD_SET = "set.json"


def standard_set(folder: Folder) -> Mapping[str, Any]:
    """Return the record of a graph folder, or {} unless it is a standard set. ValueError if it is damaged."""
    if STANDARD_SET not in folder.documents:
        return {}
    refuse_replaced(folder)
    found: Mapping[str, Any] = read_document(folder.path, STANDARD_SET, folder.documents[STANDARD_SET])
    return found


def negatives_folder(path: Path) -> Path:
    """Return the folder next to a graph folder with the published negatives of a standard set."""
    named = path.resolve() if path.name in ("", "..") else path  # "." and ".." do not name the folder
    return named.parent / f"{named.name}-negatives"


_THREADS = 2  # sha256 runs without the GIL


def refuse_damage(folder: Folder, notice: ProgressCallback | None = None) -> None:
    """Raise ValueError that names the first file of a graph with a wrong checksum.

    Reads each primary array once. Arrays that are not on this machine are skipped.
    """
    arrays = folder.arrays
    meter = Meter(sum(entry.bytes for entry in arrays.values()), notice)
    refuse_replaced(folder)

    def checksum(file: str) -> str:
        return file_checksum(folder.path / file, partial(meter.at, f"checking {file}"))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = zip(sorted(arrays), pool.map(checksum, sorted(arrays)), strict=True)
        damaged = next((file for file, sha256 in found if sha256 != arrays[file].sha256), None)
        if damaged is not None:
            refuse_replaced(folder)
            pool.shutdown(wait=False, cancel_futures=True)
            raise ValueError(
                f"{folder.path / damaged}: checksum differs; {REMEDY}. "
                f"`khop verify {shlex.quote(str(folder.path))}` lists all damage"
            )
