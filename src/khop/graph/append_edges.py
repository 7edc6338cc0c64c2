"""New edges in the rows of an edge type: after its edges, or between them by time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph import layout
from khop.graph.added_rows import AddedEdges, AddedRows
from khop.graph.checked_rows import CheckedRows
from khop.graph.folder import GraphFolder
from khop.graph.folder_writer import FolderWriter
from khop.graph.manifest import EdgeEntry
from khop.graph.merged_rows import MergedRows, Read, merged_offsets
from khop.graph.npy import STORED, map_numpy
from khop.graph.row_order import INPUT
from khop.graph.shared_arrays import share_files
from khop.graph.tables import id_dtype
from khop.kernels.later_positions import later_positions
from khop.schema import NodeType

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
NO_SPLIT, SPLIT = -1, "split"  # the edge column of a split, and its value for edges in none


def append_edges(
    base: GraphFolder,
    entry: EdgeEntry,
    added: AddedRows,
    counts: Mapping[NodeType, int],
    out: FolderWriter,
    jobs: list[Callable[[], None]],
) -> EdgeEntry:
    """Add the writing of an edge type's arrays to `jobs`, and return its new entry.

    `counts` are of all nodes. A row holds edges of the graph, then new ones, and follows the times where the
    graph's rows do.
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
    """New edges in the order of their rows, with their places between the edges of the graph."""

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
    """Return the time of each new edge: its own, its source's, or the later of both."""
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
        """Return a column of the new edges; without one in the later data, they are in no split."""
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
