"""Build a graph folder from edge lists and columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from khop.arguments import mapping_of, path_of, whole_number
from khop.graph import layout
from khop.graph.atomic import new_folder, refuse_existing
from khop.graph.build_runs import chunk_tasks, memory_of, plan_of, write_through_disk
from khop.graph.checks import checked_reverses
from khop.graph.disk_space import check_disk
from khop.graph.documents import write_documents
from khop.graph.edge_runs import EdgePlan
from khop.graph.folder_writer import FolderWriter
from khop.graph.given_ids import kind_of
from khop.graph.inputs import Given
from khop.graph.manifest import EdgeEntry, Manifest, write_manifest
from khop.graph.npy import CHUNK_BYTES, row_chunks
from khop.graph.progress import Meter, ProgressCallback, in_bytes
from khop.graph.row_order import INPUT, RowOrder, sort_notice
from khop.graph.tables import EdgeChunks, EdgeStream, EdgeTable, GivenEdges, GivenNodes, NodeTable, id_dtype
from khop.graph.write_ids import sliced, write_ids
from khop.kernels.build_csc import build_csc, group_by_destination
from khop.kernels.csc import Csc
from khop.kernels.memory import free_memory_bytes
from khop.schema import EdgeType, NodeType, by_edge_type, edge_type_of

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
    """Write a graph folder and return its path. The folder appears complete or not at all.

    Names, ids, lengths, NaN, labels and splits are checked before anything is written. A ValueError names the
    first invalid value.

    Indices are int32 if they fit, else int64. If an edge type has columns and its edges are not given by
    destination, `edge_id` stores the input position of each edge. To store input positions of an edge type
    without columns, give them as a column.

    `sort_by` names a column of times. The edges of each destination are then sorted by time, as
    `khop.Temporal` requires. The time is a column of the edge type, or of its source nodes, or the later of
    both. Edge types with neither column keep their order.

    `memory` is a budget in bytes (default: half of what is free). Besides the input, an edge type takes at
    most 6 bytes per edge, 22 with columns, 48 more if it sorts. If that exceeds the budget, its edges are
    sorted through files on the disk of `path`. `EdgeChunks` always are. The folder has the same bits in
    either case.

    `documents` are JSON files to keep beside the arrays, by name. `notice` is called with a text,
    the bytes done and the bytes in all. The text is the current file, or the edge type that is sorted.
    """
    target = path_of("path", path)
    threads = whole_number("threads", threads, 1)
    budget = free_memory_bytes() // 2 if memory is None else whole_number("memory", memory, 1)
    edges = _checked_types(nodes, edges)
    refuse_existing(target)
    given_nodes = [GivenNodes.of(node_type, table) for node_type, table in nodes.items()]
    counts = {given.entry.type: given.entry.count for given in given_nodes}
    tables = {t: table for t, table in edges.items() if not isinstance(table, EdgeChunks)}
    given_edges = _all_given_edges(tables, counts)
    streams = [EdgeStream.of(t, table, counts) for t, table in edges.items() if isinstance(table, EdgeChunks)]
    row_order = _row_order(sort_by, given_nodes, [*given_edges, *(stream.first for stream in streams)])
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
    """Return the edges by type; ValueError for arguments that are no mappings, or for names of types."""
    mapping_of("nodes", nodes, "node types to khop.NodeTable")
    mapping_of("edges", edges, "edge types to khop.EdgeTable")
    layout.check_names(nodes, "node type")
    by_type = by_edge_type(edges)
    layout.check_edge_types(by_type)
    return by_type


def _row_order(column: str | None, nodes: Iterable[GivenNodes], edges: Iterable[GivenEdges]) -> RowOrder:
    of_nodes = [(given.entry.type, given.columns) for given in nodes]
    return RowOrder.of(column, of_nodes + [(given.entry.type, given.columns) for given in edges])


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
        """Write edges in chunks, and their reverses if asked."""
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
        times = self.row_order.times.get(edge_type[0])
        is_sorted = times is not None or self.row_order.column in given.columns
        order = self.row_order.column if is_sorted else INPUT
        return plan_of(edge_type, self.counts, given.columns, order, times)

    def _order_of(self, edge_type: EdgeType) -> str:
        return self.row_order.column if self.row_order.concerns(edge_type) else INPUT

    def _through_disk(
        self, plans: list[EdgePlan], reverses: Sequence[EdgeType | None], tables: Iterator[GivenEdges]
    ) -> list[EdgeEntry]:
        source_times = [self.row_order.times.get(plan.edge_type[0]) for plan in plans]
        tasks = (
            task
            for given in tables
            for task in chunk_tasks(
                given.sources, given.destinations, given.columns, self.row_order.column, source_times
            )
        )
        return write_through_disk(plans, reverses, tasks, self.out, self.memory, self.threads)

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
        if _ascends_by_one(positions):
            return entry
        file = layout.edge_array(edge_type, "edge_id")
        chunks = (chunk for _, chunk in row_chunks(positions))
        self.out.array(file, id_dtype(entry.count), (entry.count,), chunks)
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
            f"{in_bytes(needed)}, and this machine has {in_bytes(there)} of memory; give the number "
            "of nodes there are, and ids without gaps"
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
