"""Spilled edges, sorted and written as the arrays of a graph folder."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph import layout
from khop.graph.duplicates import without_duplicates
from khop.graph.edge_groups import Grouping, SortedEdges
from khop.graph.edge_runs import POSITION, SOURCE, EdgeRuns
from khop.graph.folder_writer import ArrayWriter, FolderWriter
from khop.graph.manifest import EdgeEntry
from khop.graph.parallel_tasks import in_order
from khop.graph.row_order import INPUT
from khop.schema import EdgeType

EDGE_ID = "edge_id"


def write_edges(runs: EdgeRuns, writer: FolderWriter, reverse_of: EdgeType | None = None) -> EdgeEntry:
    """Sort the edges by destination and write them; return their entry of graph.json.

    The edges of a destination keep the order of the input, or follow the plan's times. Neither the budget of
    memory nor the number of threads changes a bit. `edge_id` is stored as by `write_graph`, but not if
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
            dtype = "int32" if count <= 1 << 31 else "int64"
            self._fields[POSITION] = self._open(EDGE_ID, dtype, (count,))
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
        for name, array in self._fields.items():
            array.write(piece.fields[name])
        self._compare_order(piece.fields.get(POSITION))

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
