"""Order of the edges of one destination: as given, or by a column of times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from khop.graph.inputs import Given
from khop.graph.rule_arrays import edge_times
from khop.kernels.csc import Csc
from khop.kernels.sort_rows import first_unsorted, sort_rows
from khop.schema import EdgeType, NodeType

INPUT = "input"  # name of the given order in graph.json

ColumnsByType = Iterable[tuple[NodeType | EdgeType, Mapping[str, Given]]]


@dataclass(frozen=True)
class RowOrder:
    """The column that rows are sorted by, and the types that have it: edge types or their source types."""

    column: str
    times: Mapping[NodeType | EdgeType, Tensor]

    @classmethod
    def of(cls, column: str | None, columns: ColumnsByType) -> RowOrder:
        """Take the column from all types that have it.

        ValueError if no type has the column, or if it is not one integer per row.
        """
        if column is None:
            return cls(INPUT, {})
        by_type = dict(columns)
        having = {type_: of_type[column] for type_, of_type in by_type.items() if column in of_type}
        if column == INPUT or not having:
            there = {type_: list(of_type) for type_, of_type in by_type.items()}
            raise ValueError(f"sort_by {column!r}: no such column of times; there are {there}")
        for given in having.values():
            if given.values.ndim != 1 or not np.issubdtype(given.values.dtype, np.integer):
                shape = given.values.shape
                raise ValueError(
                    f"sort_by {column!r}: {given.name} is {given.dtype} of shape {shape}: times are whole "
                    "numbers, one per row; convert it to int64, for example to nanoseconds"
                )
        return cls(column, {type_: given.tensor() for type_, given in having.items()})

    def concerns(self, edge_type: EdgeType) -> bool:
        """Return True if the rows of an edge type are sorted by the column."""
        return edge_type in self.times or edge_type[0] in self.times

    def sorted(self, edge_type: EdgeType, csc: Csc, order: Tensor, threads: int) -> tuple[Csc, Tensor, bool]:
        """Return the sorted edges, the input position of each edge, and True if any edge moved.

        `order` is the input position of each edge of `csc`. Edges with equal times keep their order.
        """
        own = self.times.get(edge_type)
        columns: dict[NodeType | EdgeType, Mapping[str, Tensor]] = {}
        if own is not None:
            columns[edge_type] = {self.column: own[order]}
        if edge_type[0] in self.times:
            columns[edge_type[0]] = {self.column: self.times[edge_type[0]]}
        times = edge_times(csc, edge_type, columns, self.column)
        if times is None or first_unsorted(csc, times, threads=threads) < 0:
            return csc, order, False
        csc, moved = sort_rows(csc, times, threads=threads)
        return csc, order[moved], True


def sort_notice(edge_type: EdgeType, column: str) -> str:
    """Return the progress text for an edge type with rows that had to be sorted."""
    return f"rows of {'__'.join(edge_type)} were not in the order of {column!r}: sorted"
