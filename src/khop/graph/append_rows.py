"""Addition and deletion of rows of a graph folder, on disk.

The result is bit-identical to the folder that an import of all remaining rows would write. Arrays may be
larger than memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.atomic import ProgressCallback
from khop.graph.build import sliced, write_ids, write_tables
from khop.graph.folder import (
    ORIGINAL_ID,
    GraphFolder,
    documents_of,
    open_folder,
    refuse_damage,
    write_documents,
)
from khop.graph.folder_writer import FolderWriter, share_files
from khop.graph.inputs import Given, SparseColumn
from khop.graph.manifest import INPUT, EdgeEntry, Manifest, NodeEntry, read_manifest
from khop.graph.node_ids import (
    LABEL,
    LABEL_TIME,
    STRING,
    UNDATED,
    ids_in,
    joined_nodes,
    later_ids,
    stored_ids,
)
from khop.graph.npy import STORED, CheckedRows, map_numpy
from khop.graph.snapshots import Snapshot, publish_snapshot, snapshot_folder, snapshot_record
from khop.graph.tables import EdgeTable, NodeTable, id_dtype
from khop.kernels.edge_arrays import insert_rows
from khop.kernels.edge_times import later_positions
from khop.kernels.id_table import Keys, Kind, StringKeys, bucket_bits, key_buckets, keys_at
from khop.schema import EdgeType, NodeType

Array = npt.NDArray[Any]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AddedNodes:
    """New nodes of one type. They follow the nodes of the graph."""

    count: int
    columns: Mapping[str, Array] = field(default_factory=dict)  # values of missing columns are unknown
    ids: Keys | None = None  # the users' ids


@dataclass(frozen=True, eq=False)
class AddedEdges:
    """New edges of one type. Within a row they follow the graph's edges, in the order of the arrays."""

    sources: Int64s  # nodes of the graph, or new ones
    destinations: Int64s
    positions: Int64s  # of the input: 0, 1, ... in any order
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class AddedRows:
    """New nodes and edges of a graph, by type; types without new rows may be omitted."""

    nodes: Mapping[NodeType, AddedNodes]
    edges: Mapping[EdgeType, AddedEdges]

    def without_edges_of(self, base: GraphFolder) -> tuple[AddedRows, list[str]]:
        """Return the rows without edges between nodes of a graph, and a note for each type that had some."""
        edges, notes = {}, []
        for edge_type, new in self.edges.items():
            first = base.num_nodes(edge_type[0]), base.num_nodes(edge_type[2])
            kept = np.flatnonzero((new.sources >= first[0]) | (new.destinations >= first[1]))
            if gone := len(new) - len(kept):
                notes.append(
                    f"{' '.join(edge_type)}: {gone:,} edges between nodes of the graph omitted, as the same "
                    "tables were appended before"
                )
            edges[edge_type] = AddedEdges(
                new.sources[kept],
                new.destinations[kept],
                np.argsort(np.argsort(new.positions[kept])),
                {name: column[kept] for name, column in new.columns.items()},
            )
        return AddedRows(self.nodes, edges), notes

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of new nodes of a type."""
        return self.nodes[node_type].count if node_type in self.nodes else 0


def added_rows(base: GraphFolder, later: GraphFolder) -> AddedRows:
    """Return the rows of later data as rows to add to a graph, by their ids.

    ValueError for later data with other encoders, and for a table that repeats a node of the graph.
    """
    places = joined_nodes(base, later)
    columns = later.columns()
    nodes = {}
    for node_type, of_type in places.items():
        new = (of_type >= base.num_nodes(node_type)).nonzero().squeeze(1)
        chosen = {name: _array(column[new]) for name, column in columns.get(node_type, {}).items()}
        has_ids = bool(later.manifest.node(node_type).ids)
        ids = keys_at(later_ids(later, node_type), new.numpy()) if has_ids else None
        nodes[node_type] = AddedNodes(new.numel(), chosen, ids)
    edges = {}
    for edge_type in later.schema.edge_types:
        csc, order = later.csc(edge_type), later.edge_id(edge_type)
        csc.check()
        positions = torch.arange(csc.num_edges) if order is None else order.long()
        edges[edge_type] = AddedEdges(
            places[edge_type[0]][csc.indices.long()].numpy(),
            places[edge_type[2]][csc.destinations()].numpy(),
            positions.numpy(),
            {name: _array(column) for name, column in columns.get(edge_type, {}).items()},
        )
    return AddedRows(nodes, edges)


def _array(column: Tensor) -> Array:
    """Return a column in its stored form: bfloat16 as bits."""
    return Given.of(column, "column").values


CHUNK_BYTES = 1 << 20  # read, merged, digested and written while in the CPU cache
Read = Callable[[int, int], Array]  # rows `first` to `last` - 1, asked for in order


@dataclass(frozen=True, eq=False)
class MergedRows:
    """Positions of new rows in an array: row i is inserted before row `at[i]` of the array."""

    count: int  # rows of the array
    at: Int64s  # ascending, 0 to `count`

    def __len__(self) -> int:
        return self.count + len(self.at)

    @property
    def is_at_end(self) -> bool:
        """True if all new rows follow the rows of the array."""
        return not len(self.at) or int(self.at[0]) == self.count

    def chunks(self, read: Read, added: Array) -> Iterator[Array]:
        """Yield the rows of both in chunks of about one MiB, with the dtype of `added`."""
        row_bytes = max(1, int(np.prod(added.shape[1:], dtype=np.int64)) * added.itemsize)
        step, done = max(1, CHUNK_BYTES // row_bytes), 0
        for first in range(0, max(1, self.count), step):
            last = min(self.count, first + step)
            end = len(self.at) if last == self.count else int(np.searchsorted(self.at, last))
            rows = read(first, last).astype(added.dtype, copy=False)
            yield insert_rows(rows, self.at[done:end] - first, added[done:end])
            done = end


def at_end(count: int, added: int) -> MergedRows:
    """Return the positions of rows that follow all rows of an array."""
    return MergedRows(count, np.full(added, count, np.int64))


def merged_offsets(read: Read, count: int, rows: Int64s, num_rows: int) -> Iterator[Array]:
    """Yield the offsets of `num_rows` rows with the entries of `count` rows, and new ones.

    `read` gives the `count` + 1 offsets without the new entries; `rows` has the row of each new entry,
    ascending.
    """
    step, before, last = CHUNK_BYTES // 8, 0, np.zeros(1, np.int64)
    for first in range(0, num_rows + 1, step):
        end = min(num_rows + 1, first + step)
        known = read(min(first, count + 1), min(end, count + 1))
        last = known[-1:] if len(known) else last
        offsets = np.concatenate([known, np.broadcast_to(last, end - first - len(known))])
        through = int(np.searchsorted(rows, end - 1))  # entries of rows before the last of these
        counts = np.bincount(rows[before:through] - (first - 1), minlength=end - first)
        yield offsets + before + np.cumsum(counts)
        before = through


NO_SPLIT, SPLIT = -1, "split"  # the edge column of a split, and its value for edges outside of all parts


def append_edges(
    base: GraphFolder,
    entry: EdgeEntry,
    added: AddedRows,
    counts: Mapping[NodeType, int],
    out: FolderWriter,
    jobs: list[Callable[[], None]],
) -> EdgeEntry:
    """Add jobs that write an edge type's arrays to `jobs`, and return its new entry.

    `counts` are of all nodes. A row has edges of the graph, then new ones, and is sorted by time if the
    graph's rows are.
    """
    new = added.edges.get(entry.type)
    is_same = new is None or not len(new)
    indices = layout.edge_array(entry.type, "indices")
    is_wider = id_dtype(counts[entry.type[0]]) != base.arrays[indices].dtype
    if is_same and not is_wider and counts[entry.type[2]] == base.num_nodes(entry.type[2]):
        share_files(base, out, entry.arrays(0))
        return entry
    base.csc(entry.type).check_rows()
    if new is None:
        nothing = np.zeros(0, np.int64)
        new = AddedEdges(nothing, nothing, nothing)
    placed = _placed(base, entry, added, new)
    writing = _Writing(base, entry, placed, new, out)
    jobs.append(partial(writing.offsets, counts[entry.type[2]]))
    if is_same and not is_wider:
        share_files(
            base, out, [file for file in entry.arrays(0) if file != layout.edge_array(entry.type, "indptr")]
        )
        return entry
    jobs.append(partial(writing.array, indices, id_dtype(counts[entry.type[0]]), new.sources))
    for name in entry.columns:
        file = layout.edge_column(entry.type, name)
        jobs.append(partial(writing.array, file, base.arrays[file].dtype, writing.column(name)))
    has_edge_id = bool(entry.columns) and not writing.is_input_order()
    if has_edge_id:
        jobs.append(writing.positions)
    return replace(entry, count=entry.count + len(new), edge_id=has_edge_id)


@dataclass(frozen=True, eq=False)
class _Placed:
    """New edges in row order, with their positions among the graph's edges."""

    order: Int64s  # positions among the new edges
    rows: Int64s  # their destinations, ascending
    merge: MergedRows


def _placed(base: GraphFolder, entry: EdgeEntry, added: AddedRows, new: AddedEdges) -> _Placed:
    indptr = _mapped(base, layout.edge_array(entry.type, "indptr"))
    num_rows = len(indptr) - 1
    is_sorted = entry.row_order != INPUT and len(new) > 0
    times = _new_times(base, entry, added, new) if is_sorted else None
    order = (
        np.argsort(new.destinations, kind="stable")
        if times is None
        else np.lexsort((times, new.destinations))
    )
    rows = new.destinations[order]
    at = indptr[np.minimum(rows + 1, num_rows)]
    if times is not None:
        known = rows < num_rows
        begins = indptr[rows[known]]
        at = at.copy()
        at[known] = later_positions(_time_at(base, entry), begins, at[known], times[order][known])
    return _Placed(order, rows, MergedRows(entry.count, np.ascontiguousarray(at)))


def _new_times(base: GraphFolder, entry: EdgeEntry, added: AddedRows, new: AddedEdges) -> Int64s:
    """Return the time of each new edge: the edge's, its source's, or the later of both."""
    column, source, found = entry.row_order, entry.type[0], []
    if column in entry.columns:
        found.append(new.columns[column].astype(np.int64, copy=False))
    if column in base.manifest.node(source).columns:
        of_base, times = _mapped(base, layout.node_column(source, column)), np.empty(len(new), np.int64)
        is_known = new.sources < len(of_base)
        times[is_known] = of_base[new.sources[is_known]]
        if not is_known.all():
            times[~is_known] = added.nodes[source].columns[column][new.sources[~is_known] - len(of_base)]
        found.append(times)
    return found[0] if len(found) == 1 else np.maximum(found[0], found[1])


def _time_at(base: GraphFolder, entry: EdgeEntry) -> Callable[[Int64s], Int64s]:
    """Return a function from positions of edges of the graph to their times."""
    column, source = entry.row_order, entry.type[0]
    own = _mapped(base, layout.edge_column(entry.type, column)) if column in entry.columns else None
    if column not in base.manifest.node(source).columns:
        assert own is not None
        return lambda positions: own[positions].astype(np.int64, copy=False)
    of_sources = _mapped(base, layout.node_column(source, column))
    indices = _mapped(base, layout.edge_array(entry.type, "indices"))

    def later_of_both(positions: Int64s) -> Int64s:
        times = of_sources[indices[positions]].astype(np.int64, copy=False)
        return times if own is None else np.maximum(times, own[positions])

    return later_of_both


@dataclass(frozen=True, eq=False)
class _Writing:
    """The arrays of one edge type under construction."""

    base: GraphFolder
    entry: EdgeEntry
    placed: _Placed
    new: AddedEdges
    out: FolderWriter

    def offsets(self, num_rows: int) -> None:
        """Write `indptr`."""
        file = layout.edge_array(self.entry.type, "indptr")
        rows = CheckedRows(self.base.path / file, self.base.arrays[file])
        chunks = merged_offsets(rows.read, len(rows) - 1, self.placed.rows, num_rows)
        self.out.array(file, "int64", (num_rows + 1,), chunks)

    def array(self, file: str, dtype: str, added: Array) -> None:
        """Write an array with a row per edge; `added` has the new edges in their order."""
        rows = CheckedRows(self.base.path / file, self.base.arrays[file])
        self._write(file, dtype, rows.read, added)

    def column(self, name: str) -> Array:
        """Return a column of the new edges; a missing split column becomes NO_SPLIT."""
        of_base = self.base.arrays[layout.edge_column(self.entry.type, name)]
        shape, dtype = (len(self.new), *of_base.shape[1:]), STORED[of_base.dtype]
        if name in self.new.columns:
            return self.new.columns[name].astype(dtype, copy=False).reshape(shape)
        return np.full(shape, NO_SPLIT if name == SPLIT else 0, dtype)

    def is_input_order(self) -> bool:
        """Return True if all edges lie in the order of the input."""
        positions = self.new.positions[self.placed.order]
        return not self.entry.edge_id and self.placed.merge.is_at_end and bool((np.diff(positions) > 0).all())

    def positions(self) -> None:
        """Write `edge_id`: the new edges follow in the input."""
        file, added = layout.edge_array(self.entry.type, "edge_id"), self.entry.count + self.new.positions
        read: Read = np.arange
        if self.entry.edge_id:
            read = CheckedRows(self.base.path / file, self.base.arrays[file]).read
        self._write(file, id_dtype(len(self.placed.merge)), read, added)

    def _write(self, file: str, dtype: str, read: Read, added: Array) -> None:
        ordered = added[self.placed.order].astype(STORED[dtype], copy=False)
        shape = (len(self.placed.merge), *added.shape[1:])
        self.out.array(file, dtype, shape, self.placed.merge.chunks(read, ordered))


def _mapped(base: GraphFolder, file: str) -> Array:
    return map_numpy(base.path / file, base.arrays[file])


def append_ids(
    base: GraphFolder, entry: NodeEntry, new: Keys, out: FolderWriter, memory: int, threads: int
) -> None:
    """Write the ids of a node type of the graph, then new ones, with an index of all."""
    count = entry.count + len(new)
    if bucket_bits(count) != bucket_bits(entry.count) or id_dtype(count) != id_dtype(entry.count):
        _write_anew(base, entry, new, out, memory, threads)
        return
    _append_keys(base, entry, new, out)
    bucket, tag = key_buckets(new, bucket_bits(count))
    order = np.argsort(bucket, kind="stable")  # rows ascend within a bucket
    buckets = _rows(base, entry, "buckets")
    ends = buckets.read(0, len(buckets))
    merge = MergedRows(entry.count, ends[bucket[order] + 1])
    offsets = merged_offsets(
        lambda first, last: ends[first:last], len(ends) - 1, bucket[order], len(ends) - 1
    )
    out.array(layout.node_ids(entry.type, "buckets"), "int64", (len(ends),), offsets)
    numbers = (entry.count + order).astype(STORED[id_dtype(count)])
    for name, added in (("rows", numbers), ("tags", tag[order])):
        rows, file = _rows(base, entry, name), layout.node_ids(entry.type, name)
        out.array(file, base.arrays[file].dtype, (count,), merge.chunks(rows.read, added))


def _append_keys(base: GraphFolder, entry: NodeEntry, new: Keys, out: FolderWriter) -> None:
    if not isinstance(new, StringKeys):
        _extend(base, entry, "keys", new, out)
        return
    first, last = int(new.offsets[0]), int(new.offsets[-1])
    num_bytes = base.arrays[layout.node_ids(entry.type, "bytes")].shape[0]
    _extend(base, entry, "offsets", new.offsets[1:] - first + num_bytes, out)
    _extend(base, entry, "bytes", new.data[first:last], out)


def _extend(base: GraphFolder, entry: NodeEntry, name: str, added: Array, out: FolderWriter) -> None:
    rows, file = _rows(base, entry, name), layout.node_ids(entry.type, name)
    merge = at_end(len(rows), len(added))
    out.array(file, base.arrays[file].dtype, (len(merge),), merge.chunks(rows.read, added))


def _rows(base: GraphFolder, entry: NodeEntry, name: str) -> CheckedRows:
    file = layout.node_ids(entry.type, name)
    return CheckedRows(base.path / file, base.arrays[file])


def _write_anew(
    base: GraphFolder, entry: NodeEntry, new: Keys, out: FolderWriter, memory: int, threads: int
) -> None:
    """Write an index with more buckets, or wider numbers of nodes."""
    for name in ("offsets", "bytes") if entry.ids == STRING else ("keys",):
        rows = _rows(base, entry, name)
        for first in range(0, max(1, len(rows)), 1 << 20):
            rows.read(first, min(len(rows), first + (1 << 20)))
    stored = ids_in(base.path, base.arrays, entry.type, entry.count).stored

    def chunks() -> Iterator[Keys]:
        return chain(sliced(stored), sliced(new))

    kind: Kind = "string" if isinstance(new, StringKeys) else "int64"
    write_ids(out, entry.type, kind, partial(chunks), out.folder, memory, threads)


UNKNOWN, UNKNOWN_BYTE = -1, 255  # labels of nodes whose classes are unknown
Job = Callable[[], None]  # writes one array


@dataclass(frozen=True, eq=False)
class Appending:
    """One graph with new rows under construction. Arrays without new rows are shared with the graph."""

    base: GraphFolder
    added: AddedRows
    out: FolderWriter
    split: str = ""  # new nodes with known labels join this split; "": none
    memory: int = 1 << 30  # for an index of ids that has to be rebuilt
    threads: int = 1

    def write(self) -> Manifest:
        """Write all arrays and documents, and return their description; graph.json is left to the caller."""
        check_appendable(self.base)
        manifest = self.base.manifest
        jobs: list[Job] = []
        nodes = tuple(self._nodes(entry, jobs) for entry in manifest.nodes)
        edges = tuple(self._edges(entry, nodes, jobs) for entry in manifest.edges)
        with ThreadPoolExecutor(self.threads) as pool:
            for done in [pool.submit(job) for job in jobs]:
                done.result()
        documents = write_documents(self.out.folder, documents_of(self.base.path, self.base.documents))
        # Jobs end in any order; entries have the order of the types.
        files = [file for entry in nodes for file in entry.arrays()]
        files += [file for entry in edges for file in entry.arrays(0)]
        ordered = {file: self.out.arrays[file] for file in files}
        return replace(manifest, nodes=nodes, edges=edges, arrays=ordered, documents=documents)

    def _nodes(self, entry: NodeEntry, jobs: list[Job]) -> NodeEntry:
        count, new = entry.count, self.added.nodes.get(entry.type)
        splits = [layout.node_split(entry.type, name) for name in entry.splits]
        if new is None or new.count == 0:
            share_files(self.base, self.out, entry.arrays())
            return entry
        joined = layout.node_split(entry.type, self.split) if self.split in entry.splits else ""
        share_files(self.base, self.out, [file for file in splits if file != joined])
        if joined:
            ids = count + np.flatnonzero(_is_known(entry, new))
            jobs.append(partial(self.extend, joined, ids))
        for name in entry.columns:
            file = layout.node_column(entry.type, name)
            jobs.append(partial(self.extend, file, self._node_rows(entry, name, new)))
        if entry.ids:
            if new.ids is None:
                raise ValueError(f'node type {entry.type!r}: the new nodes have no ids; remove ids = "none"')
            jobs.append(partial(append_ids, self.base, entry, new.ids, self.out, self.memory, self.threads))
        return replace(entry, count=count + new.count)

    def _edges(self, entry: EdgeEntry, nodes: tuple[NodeEntry, ...], jobs: list[Job]) -> EdgeEntry:
        counts = {node.type: node.count for node in nodes}
        return append_edges(self.base, entry, self.added, counts, self.out, jobs)

    def extend(self, file: str, added: Array) -> None:
        """Write an array of the graph, and new rows after its rows."""
        rows = CheckedRows(self.base.path / file, self.base.arrays[file])
        merge, dtype = at_end(len(rows), len(added)), self.base.arrays[file].dtype
        self.out.array(file, dtype, (len(merge), *added.shape[1:]), merge.chunks(rows.read, added))

    def _node_rows(self, entry: NodeEntry, name: str, new: AddedNodes) -> Array:
        of_base = self.base.arrays[layout.node_column(entry.type, name)]
        dtype, shape = np.dtype(STORED[of_base.dtype]), of_base.shape[1:]
        if name in new.columns:
            return new.columns[name].astype(dtype, copy=False).reshape(new.count, *shape)
        return np.full((new.count, *shape), unknown_value(entry, name, dtype), dtype)


def unknown_value(entry: NodeEntry, name: str, dtype: np.dtype[Any]) -> float:
    """Return the value of new nodes without such a column: an unknown label, a date of no label, or zero."""
    if name in entry.num_classes:
        return UNKNOWN
    if name == LABEL_TIME:
        return UNDATED
    if name != LABEL:
        return 0
    return UNKNOWN_BYTE if dtype == np.uint8 else np.nan if dtype.kind == "f" else 0


def _is_known(entry: NodeEntry, new: AddedNodes) -> Array:
    """Return the new nodes with known labels, or all nodes for a type without labels."""
    if LABEL not in entry.columns:
        return np.ones(new.count, bool)
    if LABEL not in new.columns:
        return np.zeros(new.count, bool)
    labels = new.columns[LABEL]
    if labels.dtype == np.uint8:
        labels = labels.reshape(new.count, -1).max(1)
        return np.asarray(labels != UNKNOWN_BYTE)
    known: Array = ~np.isnan(labels) if labels.dtype.kind == "f" else labels != UNKNOWN
    return known


def check_appendable(base: GraphFolder) -> None:
    """Raise ValueError for a part, quantized columns and renumbered nodes, which do not support appends."""
    manifest = base.manifest
    if manifest.part is not None:
        raise ValueError(
            f"{base.path}: is a part of a graph; append to the graph before partitioning, and partition it "
            "again"
        )
    for type_, scales in [
        *((node.type, node.scales) for node in manifest.nodes),
        *((edge.type, edge.scales) for edge in manifest.edges),
    ]:
        if scales:
            raise ValueError(
                f"{base.path}: columns of {type_!r} are quantized; append to the graph before it was "
                "quantized, and quantize the result"
            )
    for node in manifest.nodes:
        if ORIGINAL_ID in node.columns:
            raise ValueError(
                f"{base.path}: nodes of {node.type!r} were renumbered; append to the graph before that"
            )


def check_split(base: GraphFolder, split: str) -> None:
    """Raise ValueError unless a split exists."""
    if split and split not in base.split_names:
        raise ValueError(f"split {split!r}: {base.path} has {list(base.split_names)}; give one of them")


def delete_nodes(
    base: GraphFolder,
    deleted: Mapping[NodeType, Int64s],
    out: Path,
    *,
    memory: int | None = None,
    threads: int = 1,
    notice: ProgressCallback | None = None,
) -> dict[EdgeType, int]:
    """Write a graph without some nodes and their edges; return the number of deleted edges by type.

    Other nodes keep their order and get the next numbers. The folder is bit-identical to one written from the
    remaining rows. The remaining nodes and edges of all types are in memory.
    """
    check_appendable(base)
    refuse_damage(base, notice)
    kept = {node.type: np.ones(node.count, bool) for node in base.manifest.nodes}
    for node_type, gone in deleted.items():
        kept[node_type][gone] = False
    ids = stored_ids(base)
    columns = base.columns()
    nodes = {
        node.type: _nodes(base, node, kept[node.type], columns[node.type], ids.get(node.type))
        for node in base.manifest.nodes
    }
    edges = {edge.type: _edges(base, edge, kept, columns[edge.type]) for edge in base.manifest.edges}
    documents = documents_of(base.path, base.documents)
    sort_by, only = _sorted_by(base), base.row_order.keys()
    write_tables(out, nodes, edges, sort_by, threads, memory, documents, notice, only)
    return {
        edge.type: edge.count - len(table.sources)
        for edge, table in zip(base.manifest.edges, edges.values(), strict=True)
        if edge.count > len(table.sources)
    }


def delete_ids(
    graph: Path,
    base: GraphFolder,
    delete: Mapping[NodeType, Sequence[Any]],
    memory: int,
    threads: int,
    notice: ProgressCallback | None,
) -> tuple[Path, Snapshot, tuple[str, ...]]:
    """Delete nodes by the users' ids, as a new snapshot; return its folder, the snapshot and notes.

    `base` is the newest snapshot. Ids that exist only in earlier snapshots are already deleted. ValueError
    for other unknown ids.
    """
    rows, notes = {}, list[str]()
    record = snapshot_record(graph)
    earlier = [snapshot_folder(graph, one) for one in record.snapshots]
    for node_type, ids in delete.items():
        own = ids_in(base.path, base.arrays, node_type, base.num_nodes(node_type))
        found = own.rows(ids)
        rows[node_type] = np.unique(found[found >= 0])
        missing = [id_ for id_, row in zip(ids, found.tolist(), strict=True) if row < 0]
        unknown = _never_there(earlier, node_type, missing)
        if unknown:
            raise ValueError(
                f"delete: no {node_type} has the id {unknown[0]!r}; {len(unknown)} of {len(ids)} ids are "
                "unknown; remove them"
            )
        if missing:
            notes.append(f"{node_type}: {len(missing):,} of {len(ids):,} ids are already deleted")
    nodes = {node_type: -len(of_type) for node_type, of_type in rows.items() if len(of_type)}
    if not nodes:
        notes = ["nothing to do: all ids are already deleted"] if notes else ["nothing to do: no ids"]
        return base.path, Snapshot(base.fingerprint), tuple(notes)
    out = graph / layout.SNAPSHOTS / ".deleting"
    out.parent.mkdir(exist_ok=True)
    for killed in (out, *out.parent.glob(f".{out.name}.*")):  # leftovers of a killed process
        shutil.rmtree(killed, ignore_errors=True)
    gone = delete_nodes(base, rows, out, memory=memory, threads=threads, notice=notice)
    edges = {" ".join(edge_type): -count for edge_type, count in gone.items()}
    snapshot = Snapshot(read_manifest(out)[1], nodes, edges)
    left = tuple(tables.without(rows) for tables in record.appended)
    target = publish_snapshot(graph, out, snapshot, base.fingerprint, left)
    return target, snapshot, tuple(notes)


def _never_there(snapshots: Sequence[Path], node_type: NodeType, ids: Sequence[Any]) -> list[Any]:
    """Return the ids that are not in any snapshot."""
    for folder in reversed(snapshots):
        if not ids:
            break
        of_earlier = open_folder(folder)
        own = ids_in(folder, of_earlier.arrays, node_type, of_earlier.num_nodes(node_type))
        ids = [id_ for id_, row in zip(ids, own.rows(list(ids)).tolist(), strict=True) if row < 0]
    return list(ids)


def _nodes(
    base: GraphFolder,
    node: NodeEntry,
    kept: npt.NDArray[np.bool_],
    columns: Mapping[str, Tensor],
    ids: Keys | None,
) -> NodeTable:
    rows, number = np.flatnonzero(kept), np.cumsum(kept) - 1
    splits = {name: base.split(name)[node.type].numpy() for name in node.splits}
    left = {name: number[split[kept[split]]] for name, split in splits.items()}
    return NodeTable(
        len(rows),
        {name: _kept(column, rows, node.sparse.get(name)) for name, column in columns.items()},
        {name: nodes for name, nodes in left.items() if len(nodes)},
        node.num_classes,
        None if ids is None else keys_at(ids, rows),
        unknown=[name for name, column in columns.items() if column.is_floating_point()],
    )


def _kept(column: Tensor, rows: npt.NDArray[np.int64], sparse_width: int | None) -> Tensor | SparseColumn:
    kept = column[torch.from_numpy(rows)]
    return kept if sparse_width is None else SparseColumn(kept, sparse_width)


def _edges(
    base: GraphFolder,
    edge: EdgeEntry,
    kept: Mapping[NodeType, npt.NDArray[np.bool_]],
    columns: Mapping[str, Tensor],
) -> EdgeTable:
    """Return the remaining edges in the order of the input."""
    csc, edge_id = base.csc(edge.type), base.edge_id(edge.type)
    csc.check()
    sources, destinations = csc.indices.long(), csc.destinations()
    if edge_id is not None:
        order = torch.empty_like(destinations)
        order[edge_id.long()] = torch.arange(csc.num_edges)
        sources, destinations = sources[order], destinations[order]
        columns = {name: column[order] for name, column in columns.items()}
    source, _, destination = edge.type
    chosen = torch.from_numpy(kept[source][sources.numpy()] & kept[destination][destinations.numpy()])
    numbers = {end: torch.from_numpy(np.cumsum(kept[end]) - 1) for end in (source, destination)}
    return EdgeTable(
        numbers[source][sources[chosen]],
        numbers[destination][destinations[chosen]],
        {name: column[chosen] for name, column in columns.items()},
        edge.reverse_of,
    )


def _sorted_by(base: GraphFolder) -> str | None:
    orders = {*base.row_order.values()}
    if len(orders) > 1:
        raise ValueError(
            f"{base.path}: rows follow {sorted(orders)}; sort it by one column with khop graph sort, and "
            "delete afterwards"
        )
    return next(iter(orders), None)
