"""Graph folders written from edges and columns, within a memory budget.

Edges come in chunks. If a sort in memory would exceed the budget, the chunks of each edge type are written to
a file of runs, grouped by destination, and sorted from there. An edge type and its reverse are made from the
same chunks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import mapping_of, path_of, whole_number
from khop.graph import layout
from khop.graph.atomic import (
    Meter,
    ProgressCallback,
    check_disk,
    in_bytes,
    in_order,
    new_folder,
    refuse_existing,
)
from khop.graph.edge_runs import (
    POSITION,
    SOURCE,
    EdgeChunk,
    EdgePlan,
    EdgeRuns,
    Grouping,
    SortedEdges,
    Times,
    spill,
    without_duplicates,
)
from khop.graph.folder import Folder, documents_of, write_documents
from khop.graph.folder_writer import ArrayWriter, FolderWriter
from khop.graph.inputs import Given, Quantized, SparseColumn, checked_reverses
from khop.graph.manifest import INPUT, EdgeEntry, Manifest, write_manifest
from khop.graph.needs import Columns
from khop.graph.node_ids import STRING, kind_of, stored_ids
from khop.graph.npy import CHUNK_BYTES, row_chunks
from khop.graph.rule_arrays import RowOrder, sort_notice
from khop.graph.store import CscGraph
from khop.graph.tables import EdgeChunks, EdgeStream, EdgeTable, GivenEdges, GivenNodes, NodeTable, id_dtype
from khop.kernels.csc import Csc, build_csc, group_by_destination
from khop.kernels.id_table import IdTable, Keys, Kind, StringKeys, bucket_bits, key_buckets, keys_at
from khop.kernels.memory import free_memory_bytes
from khop.schema import ColumnSpec, EdgeType, NodeType, by_edge_type, edge_type_of

EDGE_ID = "edge_id"


def write_edges(runs: EdgeRuns, writer: FolderWriter, reverse_of: EdgeType | None = None) -> EdgeEntry:
    """Sort the edges by destination and write them; return their entry of graph.json.

    The edges of a destination keep the order of the input, or follow the plan's times. The result does not
    depend on the memory budget or the number of threads. `edge_id` is stored as by `write_graph`, but not if
    duplicates were removed.
    """
    plan = runs.plan
    with ExitStack() as opened:
        if plan.duplicates != "keep":
            runs = without_duplicates(runs, opened)
        edges = _EdgeArrays(runs, writer)
        tasks = Grouping.of(runs, opened).tasks(runs.spill)
        for piece in in_order(tasks, runs.threads):
            edges.write(piece)
        has_edge_id = edges.close()
    order = plan.sort_by or INPUT
    return EdgeEntry(
        plan.edge_type, runs.count, tuple(plan.columns), has_edge_id, reverse_of, row_order=order
    )


class _EdgeArrays:
    """The arrays of one edge type under construction."""

    def __init__(self, runs: EdgeRuns, writer: FolderWriter) -> None:
        plan, count = runs.plan, runs.count
        self._plan, self._writer = plan, writer
        self._indptr = self._open("indptr", "int64", (plan.num_destinations + 1,))
        self._indptr.write(np.zeros(1, np.int64))
        self._fields = {SOURCE: self._open("indices", plan.source_dtype, (count,))}
        for name, (dtype, shape) in plan.columns.items():
            file = layout.edge_column(plan.edge_type, name)
            self._fields[name] = writer.open_array(file, dtype, (count, *shape))
        self._is_input_order = True
        if plan.columns and plan.duplicates == "keep":
            self._fields[POSITION] = self._open(EDGE_ID, _dtype_of_ids(plan.edge_id, count), (count,))
        self._rows_end = self._edges = 0

    def _open(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        return self._writer.open_array(layout.edge_array(self._plan.edge_type, name), dtype, shape)

    def write(self, piece: SortedEdges) -> None:
        """Write the next edges."""
        if len(piece.degrees):
            ends = np.cumsum(piece.degrees) + self._rows_end
            self._indptr.write(ends)
            self._rows_end = int(ends[-1])
        if not piece.fields:
            return
        fields = dict(piece.fields)
        if POSITION in self._fields and self._plan.edge_id is not None:
            fields[POSITION] = self._plan.edge_id.numpy()[fields[POSITION]]
        for name, array in self._fields.items():
            array.write(fields[name])
        self._compare_order(fields.get(POSITION))

    def _compare_order(self, positions: npt.NDArray[Any] | None) -> None:
        if positions is None:
            return
        ascending = np.arange(self._edges, self._edges + len(positions))
        self._is_input_order = self._is_input_order and np.array_equal(positions, ascending)
        self._edges += len(positions)

    def close(self) -> bool:
        """Close the arrays; return True if `edge_id` is one of them."""
        self._indptr.close()
        has_positions = POSITION in self._fields
        for array in self._fields.values():
            array.close()
        if has_positions and self._is_input_order:
            self._writer.remove(layout.edge_array(self._plan.edge_type, EDGE_ID))
        return has_positions and not self._is_input_order


def _dtype_of_ids(edge_id: Tensor | None, count: int) -> str:
    return id_dtype(count) if edge_id is None else str(edge_id.numpy().dtype)


CHUNK_EDGES = 1 << 20
SORT_BYTES = 2  # per edge, in addition to its source id: the destination within its block
ORDER_BYTES = 16  # with columns: the position of each edge and its copy


def memory_of(count: int, source_bytes: int, columns: Mapping[str, Given], sort_by: str) -> int:
    """Return the memory that the edges of a type take when they are sorted in memory."""
    each = source_bytes + SORT_BYTES
    if columns:
        each += ORDER_BYTES
    if sort_by != INPUT:
        each += 3 * ORDER_BYTES
    return count * each


def _chunks(
    edges: GivenEdges, part: slice, sort_by: str, source_times: Sequence[Tensor | None]
) -> Sequence[EdgeChunk]:
    """Read some edges as one chunk for each plan: as given, then reversed.

    `source_times` has, for each plan, the times of its source nodes, or None.
    """
    sources, destinations = (_ids(given.values[part]) for given in (edges.sources, edges.destinations))
    values = {name: column.values[part] for name, column in edges.columns.items()}
    directions = ((sources, destinations), (destinations, sources))
    return [
        EdgeChunk(start, end, values, _later(start, values.get(sort_by), times))
        for (start, end), times in zip(directions, source_times, strict=False)
    ]


def _later(
    sources: npt.NDArray[Any], own_times: npt.NDArray[Any] | None, source_times: Tensor | None
) -> npt.NDArray[np.int64] | None:
    """Return the later of the times of edges and of their sources."""
    if source_times is None:
        return None
    times: npt.NDArray[np.int64] = source_times.numpy()[sources].astype(np.int64)
    if own_times is not None:
        np.maximum(times, own_times, out=times)
    return times


def _ids(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    dtype = np.int32 if values.dtype == np.int32 else np.int64
    return np.ascontiguousarray(values, dtype)


KeyChunks = Callable[[], Iterable[Keys]]  # all keys in order of their rows; called twice
CHUNK_KEYS = 1 << 18
_TAG = "tag"


def table_chunks(table: IdTable[Any]) -> Iterator[Keys]:
    """Yield the keys of a table in order."""
    for first in range(0, len(table), CHUNK_KEYS):
        yield table.keys(np.arange(first, min(len(table), first + CHUNK_KEYS)))


def sliced(keys: Keys) -> Iterator[Keys]:
    """Yield slices of keys."""
    for first in range(0, len(keys), CHUNK_KEYS):
        yield keys[first : first + CHUNK_KEYS]


def chosen(keys: Keys, rows: npt.NDArray[np.int64]) -> Iterator[Keys]:
    """Yield the keys at some rows, in their order."""
    for first in range(0, len(rows), CHUNK_KEYS):
        yield keys_at(keys, rows[first : first + CHUNK_KEYS])


def write_ids(
    writer: FolderWriter,
    node_type: NodeType,
    kind: Kind,
    chunks: KeyChunks,
    scratch: Path,
    memory: int,
    threads: int,
) -> None:
    """Write the ids of all nodes of a type. They must be distinct. Uses a temporary file in `scratch`."""
    count, num_bytes = _sizes(chunks())
    bits = bucket_bits(count)
    if kind == STRING:
        _write_strings(writer, node_type, chunks(), count, num_bytes)
    else:
        writer.array(layout.node_ids(node_type, "keys"), "int64", (count,), _integers(chunks()))
    plan = EdgePlan((node_type, "id", "bucket"), count, 1 << bits, {_TAG: ("int16", ())})
    runs = EdgeRuns(scratch / f"ids-{node_type}", plan, memory, threads)
    try:
        spill([runs], _bucket_tasks(chunks(), bits))
        _write_index(writer, node_type, runs)
    finally:
        runs.close()


def _sizes(chunks: Iterable[Keys]) -> tuple[int, int]:
    count = num_bytes = 0
    for keys in chunks:
        count += len(keys)
        num_bytes += int(keys.offsets[-1] - keys.offsets[0]) if isinstance(keys, StringKeys) else 0
    return count, num_bytes


def _write_strings(
    writer: FolderWriter, node_type: NodeType, chunks: Iterable[Keys], count: int, num_bytes: int
) -> None:
    offsets = writer.open_array(layout.node_ids(node_type, "offsets"), "int64", (count + 1,))
    data = writer.open_array(layout.node_ids(node_type, "bytes"), "uint8", (num_bytes,))
    end = 0
    offsets.write(np.zeros(1, np.int64))
    for keys in chunks:
        assert isinstance(keys, StringKeys)
        first, last = int(keys.offsets[0]), int(keys.offsets[-1])
        offsets.write(keys.offsets[1:] - (first - end))
        data.write(keys.data[first:last])
        end += last - first
    offsets.close()
    data.close()


def _integers(chunks: Iterable[Keys]) -> Iterator[npt.NDArray[np.int64]]:
    for keys in chunks:
        assert isinstance(keys, np.ndarray)
        yield keys


def _bucket_tasks(chunks: Iterable[Keys], bits: int) -> Iterator[Callable[[], list[EdgeChunk]]]:
    first = 0
    for keys in chunks:
        yield partial(_bucketed, keys, bits, first)
        first += len(keys)


def _bucketed(keys: Keys, bits: int, first: int) -> list[EdgeChunk]:
    bucket, tag = key_buckets(keys, bits)
    return [EdgeChunk(np.arange(first, first + len(keys)), bucket, {_TAG: tag})]


def _write_index(writer: FolderWriter, node_type: NodeType, runs: EdgeRuns) -> None:
    plan, end = runs.plan, 0
    buckets = writer.open_array(layout.node_ids(node_type, "buckets"), "int64", (plan.num_destinations + 1,))
    rows = writer.open_array(layout.node_ids(node_type, "rows"), plan.source_dtype, (runs.count,))
    tags = writer.open_array(layout.node_ids(node_type, "tags"), "int16", (runs.count,))
    buckets.write(np.zeros(1, np.int64))
    with ExitStack() as opened:
        for piece in in_order(Grouping.of(runs, opened).tasks(runs.spill), runs.threads):
            buckets.write(np.cumsum(piece.degrees) + end)
            end += int(piece.degrees.sum())
            if piece.fields:
                rows.write(piece.fields[SOURCE])
                tags.write(piece.fields[_TAG])
    for array in (buckets, rows, tags):
        array.close()


Chunks = Iterator[npt.NDArray[Any]]
_INT64_BYTES = 8


def write_graph(
    path: str | os.PathLike[str],
    nodes: Mapping[NodeType, NodeTable],
    edges: Mapping[EdgeType, EdgeTable | EdgeChunks] | Mapping[str, EdgeTable | EdgeChunks],
    *,
    sort_by: str | None = None,
    threads: int = 1,
    memory: int | None = None,
    documents: Mapping[str, bytes] | None = None,
    notice: ProgressCallback | None = None,
) -> Path:
    """Write a graph folder atomically.

    Names, ids, lengths, NaN, labels and splits are checked before anything is written.

    Indices are int32 if they fit, else int64. If an edge type has columns and its edges are not given by
    destination, `edge_id` stores the input position of each edge. To store input positions of an edge
    type without columns, give them as a column.

    Args:
        path: The new folder.
        nodes: Tables of nodes by type.
        edges: Tables or chunks of edges by type, such as ("user", "buys", "item") or "user buys item".
        sort_by: Column of times by which the edges of each destination are sorted, as `khop.Temporal`
            requires: of the edge type, or of its source nodes, or the later of both. Edge types with
            neither keep their order. Default None: input order.
        threads: Number of threads, default 1.
        memory: Budget in bytes, by default half of the free memory. Besides the input, an edge type takes at
            most 6 bytes per edge, 22 with columns, 48 more if it is sorted. Above the budget, and for
            `EdgeChunks`, edges are sorted through files on the disk of `path`. The folder is bit-identical in
            either case.
        documents: JSON files to keep with the arrays, by name; default none.
        notice: Function called with a text (the current file, or the edge type that is sorted), the bytes
            done and the total bytes. Default None.
    Returns:
        The path.
    Raises:
        ValueError: A value is invalid (the text names the first one), or the folder exists.
    Example:
        >>> users, items = torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1])
        >>> nodes = {"user": khop.NodeTable(2), "item": khop.NodeTable(columns={"x": torch.rand(3, 8)})}
        >>> edges = {
        ...     "user buys item": khop.EdgeTable(users, items, reverse_of="item bought-by user"),
        ...     "item bought-by user": khop.EdgeTable(items, users),
        ... }
        >>> graph = khop.open_graph(khop.write_graph(tmp / "shop", nodes, edges))
        >>> graph.schema.edge_types
        (('user', 'buys', 'item'), ('item', 'bought-by', 'user'))
    """
    return write_tables(path, nodes, edges, sort_by, threads, memory, documents, notice)


def write_tables(
    path: str | os.PathLike[str],
    nodes: Mapping[NodeType, NodeTable],
    edges: Mapping[EdgeType, EdgeTable | EdgeChunks] | Mapping[str, EdgeTable | EdgeChunks],
    sort_by: str | None,
    threads: int,
    memory: int | None,
    documents: Mapping[str, bytes] | None,
    notice: ProgressCallback | None,
    only: Collection[EdgeType] | None = None,
    edge_ids: Mapping[EdgeType, Tensor] = MappingProxyType({}),
) -> Path:
    """Write a graph folder; see `write_graph`.

    `only` are the edge types to sort; None: all with times. `edge_ids` has numbers of edges to store in place
    of their positions in the tables.
    """
    target = path_of("path", path)
    threads = whole_number("threads", threads, 1)
    budget = free_memory_bytes() // 2 if memory is None else whole_number("memory", memory, 1)
    edges = _checked_types(nodes, edges)
    refuse_existing(target)
    given_nodes = [GivenNodes.of(node_type, table) for node_type, table in nodes.items()]
    counts = {given.entry.type: given.entry.count for given in given_nodes}
    tables = {t: table for t, table in edges.items() if not isinstance(table, EdgeChunks)}
    given_edges = [
        replace(one, edge_id=edge_ids.get(one.entry.type)) for one in _all_given_edges(tables, counts)
    ]
    streams = [EdgeStream.of(t, table, counts) for t, table in edges.items() if isinstance(table, EdgeChunks)]
    row_order = _row_order(sort_by, given_nodes, [*given_edges, *(stream.first for stream in streams)], only)
    total = sum(given.num_bytes for given in given_nodes)
    total += sum(given.num_bytes(counts) for given in given_edges)
    check_disk(target, total, "the graph")
    with new_folder(target) as folder:
        writer = _Writer(FolderWriter(folder, Meter(total, notice)), row_order, counts, threads, budget)
        for given in given_nodes:
            writer.write_nodes(given)
        written = {given.entry.type: writer.write_edges(given) for given in given_edges}
        for stream in streams:
            written |= {entry.type: entry for entry in writer.write_stream(stream)}
        entries = [written.pop(edge_type) for edge_type in edges] + list(written.values())
        of_nodes = tuple(given.entry for given in given_nodes)
        digests = write_documents(folder, documents or {})
        write_manifest(folder, Manifest(of_nodes, tuple(entries), writer.out.arrays, documents=digests))
    return target


def _checked_types(
    nodes: Mapping[NodeType, NodeTable],
    edges: Mapping[EdgeType, EdgeTable | EdgeChunks] | Mapping[str, EdgeTable | EdgeChunks],
) -> dict[EdgeType, EdgeTable | EdgeChunks]:
    """Return the edges by type; ValueError for arguments that are not mappings, or invalid type names."""
    mapping_of("nodes", nodes, "node types to khop.NodeTable")
    mapping_of("edges", edges, "edge types to khop.EdgeTable")
    layout.check_names(nodes, "node type")
    by_type = by_edge_type(edges)
    layout.check_edge_types(by_type)
    return by_type


def _row_order(
    column: str | None,
    nodes: Iterable[GivenNodes],
    edges: Iterable[GivenEdges],
    only: Collection[EdgeType] | None,
) -> RowOrder:
    of_nodes = [(given.entry.type, given.columns) for given in nodes]
    return RowOrder.of(column, of_nodes + [(given.entry.type, given.columns) for given in edges], only)


@dataclass(frozen=True)
class _Writer:
    """Writer of the tables of a graph into a folder."""

    out: FolderWriter
    row_order: RowOrder
    counts: Mapping[NodeType, int]
    threads: int
    memory: int

    def write_nodes(self, given: GivenNodes) -> None:
        """Write the columns, splits and ids of a node type."""
        node_type = given.entry.type
        for name, column in given.columns.items():
            file = layout.node_column(node_type, name)
            self.out.array(file, column.dtype, column.values.shape, _rows(column))
        for name, ids in given.splits.items():
            self.out.array(layout.node_split(node_type, name), "int64", ids.values.shape, _rows(ids))
        if given.ids is not None:
            chunks = partial(sliced, given.ids)
            write_ids(
                self.out, node_type, kind_of(given.ids), chunks, self.out.folder, self.memory, self.threads
            )

    def write_edges(self, given: GivenEdges) -> EdgeEntry:
        """Write the edges of a type by destination, with their columns in the same order."""
        edge_type = given.entry.type
        ids = np.dtype(id_dtype(self.counts[edge_type[0]])).itemsize
        if memory_of(given.entry.count, ids, given.columns, self._order_of(edge_type)) > self.memory:
            plans = [self._plan(given, edge_type)]
            return self._through_disk(plans, [given.entry.reverse_of], iter([given]))[0]
        return self._in_memory(given)

    def write_stream(self, stream: EdgeStream) -> list[EdgeEntry]:
        """Write edges in chunks, and their reverses if requested."""
        edge_type, reverse = stream.first.entry.type, stream.reverse
        _check_memory(edge_type, self.counts[edge_type[2]])
        if reverse is None:
            plans = [self._plan(stream.first, edge_type)]
            return self._through_disk(plans, [None], stream.checked(self.counts))
        layout.check_edge_types([edge_type, reverse])
        if (reverse[0], reverse[2]) != (edge_type[2], edge_type[0]):
            raise ValueError(
                f"edge type {edge_type}: reverse {reverse}: must lead from {edge_type[2]!r} to "
                f"{edge_type[0]!r}"
            )
        plans = [self._plan(stream.first, one) for one in (edge_type, reverse)]
        return self._through_disk(plans, [reverse, edge_type], stream.checked(self.counts))

    def _plan(self, given: GivenEdges, edge_type: EdgeType) -> EdgePlan:
        source_times = self.row_order.source_times(edge_type)
        has_times = source_times is not None or self.row_order.column in given.columns
        is_sorted = has_times and self.row_order.sorts(edge_type) and self.row_order.column != INPUT
        by = self.row_order.column if is_sorted else ""
        specs = {name: (column.dtype, column.values.shape[1:]) for name, column in given.columns.items()}
        ends = self.counts[edge_type[0]], self.counts[edge_type[2]]
        times: Times = "column" if source_times is None else "given"
        return EdgePlan(edge_type, *ends, specs, by, times=times, edge_id=given.edge_id)

    def _order_of(self, edge_type: EdgeType) -> str:
        return self.row_order.column if self.row_order.concerns(edge_type) else INPUT

    def _through_disk(
        self, plans: list[EdgePlan], reverses: Sequence[EdgeType | None], tables: Iterator[GivenEdges]
    ) -> list[EdgeEntry]:
        """Write an edge type, and its reverse if there are two plans; `reverses` has the reverse of each.

        The files of runs are in the folder until the end.
        """
        source_times = [self.row_order.source_times(plan.edge_type) for plan in plans]
        tasks = (
            partial(_chunks, given, slice(first, first + CHUNK_EDGES), self.row_order.column, source_times)
            for given in tables
            for first in range(0, len(given.sources), CHUNK_EDGES)
        )
        targets: list[EdgeRuns] = []
        try:
            for number, plan in enumerate(plans):
                path = self.out.folder / f"edges-{number}.runs"
                targets.append(EdgeRuns(path, plan, self.memory // len(plans), self.threads))
            self.out.meter.at(f"reading edges of {'__'.join(plans[0].edge_type)}")
            spill(targets, tasks)
            return [write_edges(runs, self.out, of) for runs, of in zip(targets, reverses, strict=True)]
        finally:
            for runs in targets:
                runs.close()

    def _in_memory(self, given: GivenEdges) -> EdgeEntry:
        edge_type, entry = given.entry.type, given.entry
        csc, order = self._sorted(given)
        if self.row_order.concerns(edge_type):
            entry = replace(entry, row_order=self.row_order.column)
        for name, tensor in (("indptr", csc.indptr), ("indices", csc.indices)):
            array = Given.of(tensor, name)
            file = layout.edge_array(edge_type, name)
            self.out.array(file, array.dtype, array.values.shape, _rows(array))
        if order is None:
            return entry
        positions = order.numpy()
        for name, column in given.columns.items():
            file = layout.edge_column(edge_type, name)
            self.out.array(file, column.dtype, column.values.shape, _rows_in_order(column, positions))
        numbers = positions if given.edge_id is None else given.edge_id.numpy()[positions]
        if _ascends_by_one(numbers):
            return entry
        file = layout.edge_array(edge_type, EDGE_ID)
        chunks = (chunk for _, chunk in row_chunks(numbers))
        self.out.array(file, _dtype_of_ids(given.edge_id, entry.count), (entry.count,), chunks)
        return replace(entry, edge_id=True)

    def _sorted(self, given: GivenEdges) -> tuple[Csc, Tensor | None]:
        """Return the sorted edges, and the input position of each edge if columns follow it."""
        edge_type = given.entry.type
        self.out.meter.at(f"sorting {layout.edge_array(edge_type, 'indices')}")
        arguments = (*given.ends(), self.counts[edge_type[0]], self.counts[edge_type[2]])
        is_sorted = self.row_order.concerns(edge_type)
        if not given.columns and not is_sorted:
            return group_by_destination(*arguments, threads=self.threads), None
        csc, order = build_csc(*arguments, threads=self.threads)
        if is_sorted:
            csc, order, moved = self.row_order.sorted(edge_type, csc, order, self.threads)
            if moved:
                self.out.meter.at(sort_notice(edge_type, self.row_order.column))
        return csc, order if given.columns else None


def _all_given_edges(edges: Mapping[EdgeType, EdgeTable], counts: Mapping[NodeType, int]) -> list[GivenEdges]:
    given = {edge_type: GivenEdges.of(edge_type, table, counts) for edge_type, table in edges.items()}
    for edge_type in edges:
        _check_memory(edge_type, counts[edge_type[2]])
    reverses = checked_reverses(
        {t: edge_type_of(table.reverse_of) for t, table in edges.items() if table.reverse_of},
        {edge_type: (one.sources, one.destinations) for edge_type, one in given.items()},
    )
    return [
        replace(one, entry=replace(one.entry, reverse_of=reverses.get(one.entry.type)))
        for one in given.values()
    ]


def _check_memory(edge_type: EdgeType, count: int) -> None:
    """Raise ValueError if the row pointers of an edge type exceed the memory of the machine."""
    needed, there = (count + 1) * _INT64_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ValueError(
            f"node type {edge_type[2]!r}: count {count:,}: edges {edge_type} take 8 bytes for each node, "
            f"{in_bytes(needed)}, and this machine has {in_bytes(there)} of memory; give the actual number "
            "of nodes, and ids without gaps"
        )


def _rows(given: Given) -> Chunks:
    return (chunk for _, chunk in row_chunks(given.values))


def _rows_in_order(given: Given, order: npt.NDArray[np.int64]) -> Chunks:
    row_bytes = max(1, given.values.nbytes // max(1, len(given)))
    step = max(1, CHUNK_BYTES // row_bytes)
    return (given.values[order[start : start + step]] for start in range(0, len(order), step))


def _ascends_by_one(positions: npt.NDArray[np.int64]) -> bool:
    return all(
        np.array_equal(chunk, np.arange(start, start + len(chunk))) for start, chunk in row_chunks(positions)
    )


Splits = Mapping[str, Mapping[NodeType, Tensor]]


def save_graph(
    path: str | os.PathLike[str],
    graph: CscGraph,
    columns: Columns,
    splits: Splits,
    notice: ProgressCallback | None,
    sort_by: str | None = None,
    origin: Folder | None = None,
    added: Mapping[EdgeType, EdgeChunks] = MappingProxyType({}),
) -> Path:
    """Write a graph, its columns and its splits as a folder, and return the path.

    Rows keep their order unless `sort_by` names a column of times to sort by. `origin` is the folder that the
    arrays are mapped from, which must be sound (`refuse_damage`). The ids of its nodes, the input positions
    of its edges, its documents, such as the cut-offs of an import, and the column by which its rows are
    sorted are kept. `added` are edges of further types.
    """
    only: Collection[EdgeType] | None = None
    if sort_by is None and origin is not None:
        sort_by, only = _kept_order(origin, columns)
    ids = {} if origin is None else stored_ids(origin)
    documents = {} if origin is None else documents_of(origin.path, origin.documents)
    nodes = {
        node_type: node_table(graph, node_type, columns, splits, ids.get(node_type), origin is not None)
        for node_type in graph.schema.node_types
    }
    own = {edge_type: edge_table(graph, edge_type, columns) for edge_type in graph.schema.edge_types}
    edges: dict[EdgeType, EdgeTable | EdgeChunks] = {**own, **added}
    edge_ids = {} if origin is None else _edge_ids(origin, own)
    return write_tables(path, nodes, edges, sort_by, 1, None, documents, notice, only, edge_ids)


def _edge_ids(origin: Folder, tables: Mapping[EdgeType, EdgeTable]) -> dict[EdgeType, Tensor]:
    """Return the input positions of edges that a folder stores, of types with all of its edges."""
    types = origin.schema.edge_types
    whole = [t for t, of in tables.items() if t in types and len(of.sources) == origin.num_edges(t)]
    return {t: ids for t in whole if (ids := origin.edge_id(t)) is not None}


def _kept_order(origin: Folder, columns: Columns) -> tuple[str | None, Collection[EdgeType]]:
    """Return the column by which rows of a folder are sorted, and their edge types; None without one."""
    order = origin.row_order
    names = {column for column in order.values() if any(column in of_type for of_type in columns.values())}
    if len(names) != 1:
        return None, ()
    (name,) = names
    return name, [edge_type for edge_type, column in order.items() if column == name]


def node_table(
    graph: CscGraph,
    node_type: NodeType,
    columns: Columns,
    splits: Splits,
    ids: Keys | None,
    has_origin: bool = False,
) -> NodeTable:
    """Return the columns and splits of a node type, as `write_graph` accepts them.

    Vectors of floating-point numbers may be labels, in which NaN is unknown. In the columns of a folder, NaN
    was checked when it was written.
    """
    specs = graph.schema.columns.get(node_type, {})
    return NodeTable(
        graph.num_nodes(node_type),
        {name: _sparse(column, specs.get(name)) for name, column in columns.get(node_type, {}).items()},
        {name: of_split[node_type] for name, of_split in splits.items() if node_type in of_split},
        {name: spec.num_classes for name, spec in specs.items() if spec.num_classes is not None},
        ids,
        [name for name, spec in specs.items() if "float" in spec.dtype and (has_origin or not spec.shape)],
    )


def edge_table(graph: CscGraph, edge_type: EdgeType, columns: Columns) -> EdgeTable:
    """Return the edges of a type with their columns, as `write_graph` accepts them."""
    csc = graph.csc(edge_type)
    csc.check()
    destinations = csc.destinations()
    given = _given(columns.get(edge_type, {}), graph.schema.columns.get(edge_type, {}))
    sources = csc.indices.long() if csc.indices.dtype != destinations.dtype else csc.indices
    return EdgeTable(sources, destinations, given, graph.schema.reverse_of.get(edge_type))


def _given(columns: Mapping[str, Tensor], specs: Mapping[str, ColumnSpec]) -> dict[str, Tensor | Quantized]:
    """Return columns as `write_graph` accepts them."""
    return {name: _quantized(column, specs.get(name)) for name, column in columns.items()}


def _sparse(column: Tensor, spec: ColumnSpec | None) -> Tensor | Quantized | SparseColumn:
    if spec is None or spec.sparse_width is None:
        return _quantized(column, spec)
    return SparseColumn(column, spec.sparse_width)


def _quantized(column: Tensor, spec: ColumnSpec | None) -> Tensor | Quantized:
    if spec is None or spec.scales is None:
        return column
    return Quantized(column, torch.tensor(spec.scales, dtype=torch.float32).view(spec.shape))
