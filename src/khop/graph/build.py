"""Build a graph folder from edge lists and columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from khop.arguments import instance_of, mapping_of, path_of, whole_number
from khop.graph import layout
from khop.graph.atomic import new_folder, refuse_existing
from khop.graph.checks import check_splits, checked_reverses
from khop.graph.folder import ORIGINAL_ID
from khop.graph.inputs import Array, Given
from khop.graph.manifest import EdgeEntry, Manifest, NodeEntry, write_manifest
from khop.graph.npy import CHUNK_BYTES, ArrayEntry, row_chunks, write_array
from khop.graph.progress import Meter, ProgressCallback
from khop.graph.quantize import Quantized
from khop.graph.row_order import RowOrder, sort_notice
from khop.kernels.build_csc import build_csc, index_dtype
from khop.kernels.checks import INDEX_DTYPES
from khop.kernels.csc import Csc
from khop.schema import EdgeType, EdgeTypeName, NodeType, by_edge_type, edge_type_of

Chunks = Iterator[npt.NDArray[Any]]
_INT64_BYTES = 8


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes of one type, ids 0 to count - 1.

    `count` is optional if the table has a column. A split is a vector of ids, kept in its order, or a boolean
    mask. Splits of the same group must not overlap. The group is the part of the name after the first dot:
    "train.0" and "val.0" must not overlap, "train.0" and "val.1" may.
    """

    count: int | None = None
    columns: Mapping[str, Array | Quantized] = field(default_factory=dict)  # (count, ...) each
    splits: Mapping[str, Array] = field(default_factory=dict)
    num_classes: Mapping[str, int] = field(default_factory=dict)  # of label columns; -1 in them is "unknown"


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of one type, in any order. Edges with the same destination keep their order."""

    sources: Array  # integers (edges), ids of the source type
    destinations: Array  # integers (edges), ids of the destination type
    columns: Mapping[str, Array | Quantized] = field(default_factory=dict)  # (edges, ...), in edge order
    reverse_of: EdgeTypeName | None = None  # the edge type with the same edges in the opposite direction


def write_graph(
    path: str | os.PathLike[str],
    nodes: Mapping[NodeType, NodeTable],
    edges: Mapping[EdgeType, EdgeTable] | Mapping[str, EdgeTable],
    *,
    sort_by: str | None = None,
    threads: int = 1,
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

    Besides the input, this needs memory for the indices of one edge type and 10 bytes per edge of that type,
    or 34 bytes per edge if it sorts.

    `notice` is called with a text, the bytes done and the bytes in all. The text is the current file,
    or the edge type with rows that had to be sorted.
    """
    target = path_of("path", path)
    threads = whole_number("threads", threads, 1)
    mapping_of("nodes", nodes, "node types to khop.NodeTable")
    mapping_of("edges", edges, "edge types to khop.EdgeTable")
    refuse_existing(target)
    layout.check_names(nodes, "node type")
    edges = by_edge_type(edges)
    layout.check_edge_types(edges)
    given_nodes = [_GivenNodes.of(node_type, table) for node_type, table in nodes.items()]
    counts = {given.entry.type: given.entry.count for given in given_nodes}
    given_edges = _all_given_edges(edges, counts)
    row_order = RowOrder.of(
        sort_by,
        [(given.entry.type, given.columns) for given in given_nodes]
        + [(given.entry.type, given.columns) for given in given_edges],
    )
    total = sum(given.num_bytes for given in given_nodes) + sum(
        given.num_bytes(counts) for given in given_edges
    )
    with new_folder(target) as folder:
        writer = _Writer(folder, row_order, Meter(total, notice))
        for given in given_nodes:
            writer.write_nodes(given)
        edge_entries = tuple(writer.write_edges(given, counts, threads) for given in given_edges)
        manifest = Manifest(tuple(given.entry for given in given_nodes), edge_entries, writer.arrays)
        write_manifest(folder, manifest)
    return target


@dataclass(frozen=True)
class _GivenNodes:
    """A checked NodeTable."""

    entry: NodeEntry
    columns: Mapping[str, Given]
    splits: Mapping[str, Given]

    @classmethod
    def of(cls, node_type: NodeType, table: NodeTable) -> _GivenNodes:
        where = f"node type {node_type!r}"
        instance_of(where, table, NodeTable, "give a khop.NodeTable")
        for what, given in (("columns", table.columns), ("splits", table.splits)):
            mapping_of(f"{where}: {what}", given, "names to tensors or arrays")
        mapping_of(f"{where}: num_classes", table.num_classes, "names of label columns to whole numbers")
        layout.check_names(table.columns, f"{where}: column")
        layout.check_names(table.splits, f"{where}: split")
        columns = _given_columns(where, table.columns)
        count = _node_count(where, table.count, columns)
        _check_columns(columns, count, f"{where} has {count:,} nodes")
        for name, num_classes in table.num_classes.items():
            if name not in columns:
                raise ValueError(
                    f"{where}: num_classes of {name!r}: no such column; there are {list(columns)}"
                )
            columns[name].check_labels(whole_number(f"{where}: num_classes of {name!r}", num_classes, 1))
        if ORIGINAL_ID in columns:
            columns[ORIGINAL_ID].check_original_ids()
        splits = {
            name: _split_ids(array, count, f"{where}: split {name!r}") for name, array in table.splits.items()
        }
        check_splits(splits, count, f"{node_type!r} nodes")
        scales = _scales(table.columns)
        entry = NodeEntry(node_type, count, tuple(columns), tuple(splits), dict(table.num_classes), scales)
        return cls(entry, columns, splits)

    @property
    def num_bytes(self) -> int:
        """Bytes to write, without headers."""
        columns = sum(column.values.nbytes for column in self.columns.values())
        return columns + sum(len(ids) * _INT64_BYTES for ids in self.splits.values())


@dataclass(frozen=True)
class _GivenEdges:
    """A checked EdgeTable."""

    entry: EdgeEntry
    sources: Given
    destinations: Given
    columns: Mapping[str, Given]

    @classmethod
    def of(cls, edge_type: EdgeType, table: EdgeTable, counts: Mapping[NodeType, int]) -> _GivenEdges:
        where = f"edge type {edge_type}"
        instance_of(where, table, EdgeTable, "give a khop.EdgeTable")
        mapping_of(f"{where}: columns", table.columns, "names to tensors or arrays")
        layout.check_names(table.columns, f"{where}: column")
        ends: list[Given] = []
        for side, node_type, array in (
            ("sources", edge_type[0], table.sources),
            ("destinations", edge_type[2], table.destinations),
        ):
            if node_type not in counts:
                raise ValueError(f"{where}: no node type {node_type!r}; there are {list(counts)}")
            ids = Given.of(array, f"{where}: {side}")
            ids.check_ids(counts[node_type], f"{node_type!r} nodes", "drop the edge or raise the count")
            ends.append(ids)
        sources, destinations = ends
        if len(sources) != len(destinations):
            raise ValueError(
                f"{where}: {len(sources):,} sources, {len(destinations):,} destinations: an edge has both"
            )
        columns = _given_columns(where, table.columns)
        _check_columns(columns, len(sources), f"{where} has {len(sources):,} edges")
        entry = EdgeEntry(edge_type, len(sources), tuple(columns), scales=_scales(table.columns))
        return cls(entry, sources, destinations, columns)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return sources and destinations, both int32 or both int64."""
        sources, destinations = self.sources.tensor(), self.destinations.tensor()
        if sources.dtype == destinations.dtype and sources.dtype in INDEX_DTYPES:
            return sources, destinations
        return sources.long(), destinations.long()

    def num_bytes(self, counts: Mapping[NodeType, int]) -> int:
        """Return the bytes to write, without headers; an upper bound, as `edge_id` may be unnecessary."""
        count = self.entry.count
        ids = count * np.dtype(_id_dtype(counts[self.entry.type[0]])).itemsize
        edge_id = count * np.dtype(_id_dtype(count)).itemsize if self.columns else 0
        columns = sum(column.values.nbytes for column in self.columns.values())
        return (counts[self.entry.type[2]] + 1) * _INT64_BYTES + ids + edge_id + columns


@dataclass(frozen=True)
class _Writer:
    """Writer of arrays into a folder; it collects their entries for graph.json."""

    folder: Path
    row_order: RowOrder
    meter: Meter
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)

    def write_nodes(self, given: _GivenNodes) -> None:
        """Write the columns and splits of a node type."""
        for name, column in given.columns.items():
            self._write(
                layout.node_column(given.entry.type, name), column.dtype, column.values.shape, _rows(column)
            )
        for name, ids in given.splits.items():
            self._write(layout.node_split(given.entry.type, name), "int64", ids.values.shape, _rows(ids))

    def write_edges(self, given: _GivenEdges, counts: Mapping[NodeType, int], threads: int) -> EdgeEntry:
        """Write the edges of a type by destination, with their columns in the same order."""
        edge_type, count = given.entry.type, given.entry.count
        csc, order = self._sorted(given, counts, threads)
        entry = given.entry
        if self.row_order.concerns(edge_type):
            entry = replace(entry, row_order=self.row_order.column)
        for name, tensor in (("indptr", csc.indptr), ("indices", csc.indices)):
            array = Given.of(tensor, name)
            self._write(layout.edge_array(edge_type, name), array.dtype, array.values.shape, _rows(array))
        if not given.columns:
            return entry
        positions = order.numpy()
        for name, column in given.columns.items():
            file = layout.edge_column(edge_type, name)
            self._write(file, column.dtype, column.values.shape, _rows_in_order(column, positions))
        if _ascends_by_one(positions):
            return entry
        file = layout.edge_array(edge_type, "edge_id")
        self._write(file, _id_dtype(count), (count,), (chunk for _, chunk in row_chunks(positions)))
        return replace(entry, edge_id=True)

    def _sorted(self, given: _GivenEdges, counts: Mapping[NodeType, int], threads: int) -> tuple[Csc, Tensor]:
        edge_type = given.entry.type
        self.meter.at(f"sorting {layout.edge_array(edge_type, 'indices')}")
        csc, order = build_csc(*given.ends(), counts[edge_type[0]], counts[edge_type[2]], threads=threads)
        if not self.row_order.concerns(edge_type):
            return csc, order
        csc, order, moved = self.row_order.sorted(edge_type, csc, order, threads)
        if moved:
            self.meter.at(sort_notice(edge_type, self.row_order.column))
        return csc, order

    def _write(self, file: str, dtype: str, shape: tuple[int, ...], chunks: Chunks) -> None:
        self.arrays[file] = write_array(
            self.folder / file, dtype, shape, chunks, lambda written: self.meter.at(file, written)
        )


def _all_given_edges(
    edges: Mapping[EdgeType, EdgeTable], counts: Mapping[NodeType, int]
) -> list[_GivenEdges]:
    given = {edge_type: _GivenEdges.of(edge_type, table, counts) for edge_type, table in edges.items()}
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


def _node_count(where: str, count: int | None, columns: Mapping[str, Given]) -> int:
    if count is None and not columns:
        raise ValueError(f"{where}: neither count nor column; give NodeTable(count=...)")
    if count is None:
        return len(next(iter(columns.values())))
    return whole_number(f"{where}: count", count, 0)


def _check_memory(edge_type: EdgeType, count: int) -> None:
    """Raise ValueError if the row pointers of an edge type exceed the memory of the machine."""
    needed, there = (count + 1) * _INT64_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ValueError(
            f"node type {edge_type[2]!r}: count {count:,}: edges {edge_type} take 8 bytes for each node, "
            f"{needed / 1e9:,.0f} GB, and this machine has {there / 1e9:,.0f} GB of memory; give the number "
            "of nodes there are, and ids without gaps"
        )


def _given_columns(where: str, columns: Mapping[str, Array | Quantized]) -> dict[str, Given]:
    arrays = {name: c.values if isinstance(c, Quantized) else c for name, c in columns.items()}
    return {name: Given.of(array, f"{where}: column {name!r}") for name, array in arrays.items()}


def _scales(columns: Mapping[str, Array | Quantized]) -> dict[str, tuple[float, ...]]:
    quantized = {name: column for name, column in columns.items() if isinstance(column, Quantized)}
    return {name: tuple(column.scales.flatten().tolist()) for name, column in quantized.items()}


def _check_columns(columns: Mapping[str, Given], count: int, owner: str) -> None:
    for column in columns.values():
        column.check_rows(count, owner)
        column.check_finite()


def _split_ids(array: Array, count: int, name: str) -> Given:
    given = Given.of(array, name)
    if given.dtype != "bool":
        return given
    if given.values.shape != (count,):
        raise ValueError(
            f"{name} is a mask of shape {given.values.shape}, but there are {count:,} nodes; give one each"
        )
    return Given(np.flatnonzero(given.values), "int64", name)


def _id_dtype(count: int) -> str:
    return str(index_dtype(count)).removeprefix("torch.")


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
