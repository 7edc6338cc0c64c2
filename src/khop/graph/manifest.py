"""graph.json as a value: the contents of a graph folder, without reading arrays."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from khop.errors import REMEDY, unread
from khop.graph import layout
from khop.graph.atomic import UNFINISHED, naming
from khop.graph.npy import ID_ARRAYS, ID_DTYPES, STORED, ArrayEntry, Expected, file_problem, flush
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema, check_width

FORMAT = "khop-graph"
VERSION = 3  # the highest that this khop reads; a folder uses the lowest that describes it
INPUT = "input"  # name of the input order of edges in graph.json
NEEDS_KHOP = "0.1.0"  # the first khop that reads VERSION


class Contents(Enum):
    """Arrays of a graph that must be present in its folder, besides graph.json."""

    ALL = "all"
    EDGES = "edges"  # the arrays that draws read, including scalar columns: weights and times
    NOTHING = "nothing"


Scales = tuple[float, ...]  # one per number of a row


@dataclass(frozen=True)
class NodeEntry:
    """Entry of one node type in graph.json."""

    type: NodeType
    count: int
    columns: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    num_classes: Mapping[str, int] = field(default_factory=dict)  # of label columns
    scales: Mapping[str, Scales] = field(default_factory=dict)  # of quantized columns
    ids: str = ""  # kind of the stored ids, "string" or "int64"; "": none are stored
    sparse: Mapping[str, int] = field(default_factory=dict)  # of sparse columns: numbers of a row

    def arrays(self) -> dict[str, Expected]:
        """Return the files that must exist."""
        columns = {layout.node_column(self.type, name): Expected(self.count) for name in self.columns}
        columns |= {layout.node_split(self.type, name): Expected(None, ("int64",)) for name in self.splits}
        ids = ID_ARRAYS[self.ids](self.count) if self.ids else {}
        return columns | {layout.node_ids(self.type, name): expected for name, expected in ids.items()}


@dataclass(frozen=True)
class EdgeEntry:
    """Entry of one edge type in graph.json."""

    type: EdgeType
    count: int
    columns: tuple[str, ...] = ()
    edge_id: bool = False  # True: input positions are stored, as they are not the CSC positions
    reverse_of: EdgeType | None = None
    scales: Mapping[str, Scales] = field(default_factory=dict)  # of quantized columns
    row_order: str = INPUT  # order of the edges of one destination: as given, or by this column
    times: bool = False  # True: edge times are stored, as sources may be in other partitions

    def arrays(self, num_destinations: int) -> dict[str, Expected]:
        """Return the files that must exist."""
        names = ("indices", "edge_id") if self.edge_id else ("indices",)
        arrays = {layout.edge_array(self.type, "indptr"): Expected(num_destinations + 1, ("int64",))}
        arrays |= {layout.edge_array(self.type, name): Expected(self.count, ID_DTYPES) for name in names}
        if self.times:
            arrays[layout.edge_array(self.type, "times")] = Expected(self.count, ("int64",))
        return arrays | {layout.edge_column(self.type, name): Expected(self.count) for name in self.columns}


@dataclass(frozen=True)
class PartEntry:
    """Number of a partition and the id ranges of all partitions; a partition's nodes have consecutive ids."""

    number: int
    offsets: Mapping[
        NodeType, tuple[int, ...]
    ]  # (parts + 1): the first id of each partition, then the number of all ids

    @property
    def parts(self) -> int:
        """Number of partitions."""
        return len(next(iter(self.offsets.values()))) - 1


@dataclass(frozen=True)
class Manifest:
    """The types of a graph and the files of its arrays, by path relative to the folder."""

    nodes: tuple[NodeEntry, ...]
    edges: tuple[EdgeEntry, ...]
    arrays: Mapping[str, ArrayEntry]
    part: PartEntry | None = None  # None: the folder holds a whole graph
    documents: Mapping[str, str] = field(default_factory=dict)  # JSON files next to arrays: name -> sha256

    @property
    def version(self) -> int:
        """Lowest format version that describes the folder: 3 with sparse columns, 2 with ids, else 1."""
        if any(node.sparse for node in self.nodes):
            return 3
        return 2 if any(node.ids for node in self.nodes) else 1

    def files(self, contents: Contents) -> set[str]:
        """Return the arrays that must be present."""
        if contents is Contents.ALL:
            return set(self.arrays)
        if contents is Contents.NOTHING:
            return set()
        of_edges = {file for edge in self.edges for file in edge.arrays(0)}
        of_edges -= {layout.edge_array(edge.type, "edge_id") for edge in self.edges}
        return {file for file in of_edges if len(self.arrays[file].shape) == 1}

    def column_files(self) -> dict[NodeType | EdgeType, dict[str, str]]:
        """Return the file of every column, by type and name."""
        files: dict[NodeType | EdgeType, dict[str, str]] = {
            node.type: {name: layout.node_column(node.type, name) for name in node.columns}
            for node in self.nodes
        }
        for edge in self.edges:
            files[edge.type] = {name: layout.edge_column(edge.type, name) for name in edge.columns}
        return files

    def num_sources(self, node_type: NodeType) -> int:
        """Return the number of ids that sources of a type may have, counted over the whole graph."""
        return self.node(node_type).count if self.part is None else self.part.offsets[node_type][-1]

    def schema(self) -> Schema:
        """Return the types, with their columns."""
        columns: dict[NodeType | EdgeType, dict[str, ColumnSpec]] = {}
        for node in self.nodes:
            files = {name: self.arrays[layout.node_column(node.type, name)] for name in node.columns}
            columns[node.type] = {
                n: ColumnSpec(
                    f.dtype, f.shape[1:], node.num_classes.get(n), node.scales.get(n), node.sparse.get(n)
                )
                for n, f in files.items()
            }
        for edge in self.edges:
            files = {name: self.arrays[layout.edge_column(edge.type, name)] for name in edge.columns}
            columns[edge.type] = {
                n: ColumnSpec(f.dtype, f.shape[1:], scales=edge.scales.get(n)) for n, f in files.items()
            }
        return Schema(
            node_types=tuple(node.type for node in self.nodes),
            edge_types=tuple(edge.type for edge in self.edges),
            reverse_of={edge.type: edge.reverse_of for edge in self.edges if edge.reverse_of},
            columns=columns,
        )

    def node(self, node_type: NodeType) -> NodeEntry:
        """Return the entry of a node type; ValueError lists the existing types."""
        for node in self.nodes:
            if node.type == node_type:
                return node
        raise ValueError(f"no node type {node_type!r}; there are {[node.type for node in self.nodes]}")

    def edge(self, edge_type: EdgeType) -> EdgeEntry:
        """Return the entry of an edge type; ValueError lists the existing types."""
        for edge in self.edges:
            if edge.type == edge_type:
                return edge
        raise ValueError(f"no edge type {edge_type!r}; there are {[edge.type for edge in self.edges]}")

    def check_types(self) -> None:
        """Raise ValueError for a name that is not a valid path, or an edge type without its node types."""
        layout.check_names((node.type for node in self.nodes), "node type")
        layout.check_edge_types(edge.type for edge in self.edges)
        for node in self.nodes:
            layout.check_names(node.columns, f"column of node type {node.type!r}")
            layout.check_names(node.splits, f"split of node type {node.type!r}")
            _check_scales(self.arrays, {layout.node_column(node.type, n): s for n, s in node.scales.items()})
            _check_sparse(self.arrays, {layout.node_column(node.type, n): w for n, w in node.sparse.items()})
        for type_, files in self.column_files().items():
            for name, file in files.items():
                if file in self.arrays:
                    check_width(f"column {name!r} of {type_!r}", self.arrays[file].shape[1:])
        _check_ids(self.nodes)
        layout.check_plain(self.documents)
        if self.part is not None:
            _check_part(self.part, self.nodes)
        for edge in self.edges:
            layout.check_names(edge.columns, f"column of edge type {edge.type}")
            _check_scales(self.arrays, {layout.edge_column(edge.type, n): s for n, s in edge.scales.items()})
            self.node(edge.type[0])
            self.node(edge.type[2])
            if edge.reverse_of:
                self.edge(edge.reverse_of)
            if edge.row_order not in (INPUT, *edge.columns, *self.node(edge.type[0]).columns):
                raise ValueError(f"edge type {edge.type}: row_order {edge.row_order!r}: no such column")

    def problems(self, folder: Path, absent: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Yield (file, problem) found from counts, sizes and headers. Takes milliseconds and reads no data.

        Files in `absent` are not reported.
        """
        counts = {node.type: node.count for node in self.nodes}
        expected: dict[str, Expected] = {}
        for node in self.nodes:
            expected |= node.arrays()
        for edge in self.edges:
            expected |= edge.arrays(counts[edge.type[2]])
        for file in sorted(expected.keys() ^ self.arrays.keys()):
            yield layout.MANIFEST, f"describes {file} in one place only"
        for file in sorted(expected.keys() & self.arrays.keys()):
            entry = self.arrays[file]
            if not expected[file].fits(entry):
                stated = f"is {entry.dtype} of shape {entry.shape} in graph.json"
                yield file, f"{stated}, where its counts need {expected[file]}"
            elif file not in absent and (problem := file_problem(folder / file, entry)):
                yield file, problem


def _check_ids(nodes: Sequence[NodeEntry]) -> None:
    for node in nodes:
        if node.ids and node.ids not in ID_ARRAYS:
            raise ValueError(f"node type {node.type!r}: ids {node.ids!r} are none of {list(ID_ARRAYS)}")


def _check_part(part: PartEntry, nodes: Sequence[NodeEntry]) -> None:
    for node in nodes:
        offsets = part.offsets.get(node.type, ())
        owned = offsets[part.number : part.number + 2]
        if len(offsets) != part.parts + 1 or len(owned) != 2 or owned[1] - owned[0] != node.count:
            raise ValueError(f"node type {node.type!r}: {node.count} nodes, offsets of parts {offsets}")


def _check_scales(arrays: Mapping[str, ArrayEntry], by_file: Mapping[str, Scales]) -> None:
    for file, scales in by_file.items():
        entry = arrays.get(file)
        if entry is None or entry.dtype != "int8" or len(scales) != math.prod(entry.shape[1:]):
            raise ValueError(f"{file}: {len(scales)} scales do not fit a row of it")


def _check_sparse(arrays: Mapping[str, ArrayEntry], by_file: Mapping[str, int]) -> None:
    for file, width in by_file.items():
        entry = arrays.get(file)
        if entry is None or entry.dtype != "int32" or len(entry.shape) != 3 or entry.shape[1] != 2:
            raise ValueError(f"{file}: rows of {width} numbers are stored as int32 (rows, 2, entries)")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write graph.json and flush it. It must be the last file written to a folder."""
    content = {"format": FORMAT, "version": manifest.version, "needs_khop": NEEDS_KHOP, **asdict(manifest)}
    for entry in (*content["nodes"], *content["edges"]):
        for optional in ("scales", "times", "ids", "sparse"):  # omitted if empty, as in earlier versions
            if not entry.get(optional):
                entry.pop(optional, None)
    if manifest.part is None:
        del content["part"]
    if not manifest.documents:
        del content["documents"]
    document = {**content, "fingerprint": fingerprint(content)}
    path = folder / layout.MANIFEST
    with naming(path), path.open("wb") as file:
        file.write(json.dumps(document, indent=1).encode("ascii") + b"\n")
        flush(file)


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return graph.json and its fingerprint; ValueError if it is missing, damaged or from a newer khop."""
    path = folder / layout.MANIFEST
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; khop import and write_graph make one")
    if (folder / layout.BOOK).is_file():
        raise ValueError(
            f"{folder}: is a partitioned graph; give the graph before partitioning, or one of its "
            f"parts, {folder / 'part-0000'}"
        )
    if not path.is_file():
        raise ValueError(
            f"{folder}: not a graph folder, or unfinished: {layout.MANIFEST} is missing; write it again"
        )
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        found = (document["format"], int(document["version"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not what khop writes ({unread(error)}); {REMEDY}") from error
    if found[0] != FORMAT or found[1] < 1:
        raise ValueError(f"{path}: format {found} is not {FORMAT!r} 1 to {VERSION}; {REMEDY}")
    if found[1] > VERSION:
        needs = document.get("needs_khop", "a newer one")
        raise ValueError(
            f"{path}: format version {found[1]}, this khop reads up to {VERSION}: upgrade to khop {needs}+"
        )
    claimed = document.pop("fingerprint", None)
    if claimed != fingerprint(document):
        raise ValueError(f"{path}: the fingerprint does not match the content; {REMEDY}")
    manifest = _manifest(document, path)
    try:
        manifest.check_types()
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {REMEDY}") from error
    return manifest, str(claimed)


def open_manifest(folder: Path, contents: Contents = Contents.ALL) -> tuple[Manifest, str, frozenset[str]]:
    """Return graph.json, its fingerprint and the absent files.

    Sizes and headers of all other files match graph.json. Files outside `contents` may be absent.
    """
    if folder.name.endswith(UNFINISHED):
        raise ValueError(f"{folder}: its writer was killed or is still running; write the graph again")
    manifest, claimed = read_manifest(folder)
    optional = manifest.arrays.keys() - manifest.files(contents)
    absent = frozenset(file for file in optional if not (folder / file).exists())
    for file, problem in manifest.problems(folder, absent):
        raise ValueError(f"{folder / file}: {problem}; {REMEDY}")
    return manifest, claimed, absent


def fingerprint(content: Mapping[str, Any]) -> str:
    """Return the sha256 of graph.json's content.

    It includes the checksum of every array, so two graphs are equal exactly if their fingerprints are equal.
    """
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    ).hexdigest()


def _manifest(document: Mapping[str, Any], path: Path) -> Manifest:
    try:
        return Manifest(
            nodes=tuple(node_entry(entry) for entry in document["nodes"]),
            edges=tuple(edge_entry(entry) for entry in document["edges"]),
            arrays={file: array_entry(entry) for file, entry in document["arrays"].items()},
            part=_part_entry(document["part"]) if "part" in document else None,
            documents={str(name): str(sha256) for name, sha256 in document.get("documents", {}).items()},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: not as format {document['version']} has it ({error!r}); {REMEDY}"
        ) from error


def node_entry(entry: Mapping[str, Any]) -> NodeEntry:
    """Return the entry of a node type from its JSON."""
    return NodeEntry(
        type=str(entry["type"]),
        count=int(entry["count"]),
        columns=tuple(entry["columns"]),
        splits=tuple(entry["splits"]),
        num_classes=dict(entry["num_classes"]),
        scales=_scales(entry),
        ids=str(entry.get("ids", "")),
        sparse={name: int(width) for name, width in entry.get("sparse", {}).items()},
    )


def edge_entry(entry: Mapping[str, Any]) -> EdgeEntry:
    """Return the entry of an edge type from its JSON."""
    return EdgeEntry(
        type=_edge_type(entry["type"]),
        count=int(entry["count"]),
        columns=tuple(entry["columns"]),
        edge_id=bool(entry["edge_id"]),
        reverse_of=_edge_type(entry["reverse_of"]) if entry["reverse_of"] else None,
        scales=_scales(entry),
        row_order=str(entry["row_order"]),
        times=bool(entry.get("times", False)),
    )


def _part_entry(entry: Mapping[str, Any]) -> PartEntry:
    offsets = {str(t): tuple(int(offset) for offset in of_type) for t, of_type in entry["offsets"].items()}
    return PartEntry(int(entry["number"]), offsets)


def _scales(entry: Mapping[str, Any]) -> dict[str, Scales]:
    return {name: tuple(map(float, numbers)) for name, numbers in entry.get("scales", {}).items()}


def _edge_type(parts: Sequence[str]) -> EdgeType:
    source, relation, destination = parts
    return source, relation, destination


def array_entry(entry: Mapping[str, Any]) -> ArrayEntry:
    """Return the entry of an array from its JSON."""
    if entry["dtype"] not in STORED:
        raise ValueError(f"dtype {entry['dtype']!r}")
    shape = tuple(int(length) for length in entry["shape"])
    return ArrayEntry(entry["dtype"], shape, int(entry["bytes"]), str(entry["sha256"]))
