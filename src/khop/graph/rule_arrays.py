"""Sampling of local edges by a rule, for whole graphs and for parts.

The edges of a destination are in the order of the input, or sorted by a column of times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from khop.draw import DrawKey, FrontierByType, Neighbors, NeighborsByType
from khop.graph.inputs import Given
from khop.graph.manifest import INPUT
from khop.graph.needs import ArrayStore, Columns, RuleArrays, StoredArrays
from khop.graph.rule import Hop, Rule, check_frontier
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import (
    first_unsorted,
    sort_rows,
)
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.sample_hop import sample_hop
from khop.schema import EdgeType, NodeType, Schema


def edge_times(csc: Csc, edge_type: EdgeType, columns: Columns, column: str) -> Tensor | None:
    """Return int64 (edges): the edges' column, or their sources' column, or the later of both."""
    own, sources = (columns.get(type_, {}).get(column) for type_ in (edge_type, edge_type[0]))
    return None if own is None and sources is None else EdgeTimes(own, sources).of(csc)


ColumnsByType = Iterable[tuple[NodeType | EdgeType, Mapping[str, Given]]]


@dataclass(frozen=True)
class RowOrder:
    """The column that rows are sorted by, and the types that have it: edge types or their source types."""

    column: str
    times: Mapping[NodeType | EdgeType, Tensor]
    only: Collection[EdgeType] | None = None  # edge types to sort; None: all that the column concerns

    @classmethod
    def of(
        cls, column: str | None, columns: ColumnsByType, only: Collection[EdgeType] | None = None
    ) -> RowOrder:
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
        return cls(column, {type_: given.tensor() for type_, given in having.items()}, only)

    def concerns(self, edge_type: EdgeType) -> bool:
        """Return True if the rows of an edge type are sorted by the column."""
        return (edge_type in self.times and self.sorts(edge_type)) or self.source_times(edge_type) is not None

    def sorts(self, edge_type: EdgeType) -> bool:
        """Return True if an edge type with times is among those to sort."""
        return self.only is None or edge_type in self.only

    def source_times(self, edge_type: EdgeType) -> Tensor | None:
        """Return the times of the source nodes of an edge type; None if its rows are not sorted by them."""
        return self.times.get(edge_type[0]) if self.sorts(edge_type) else None

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


def stored_csc(csc: Csc, store: ArrayStore) -> Csc:
    """Return the edges of a type on a device; ValueError if they are damaged: kernels there do not check."""
    csc.check()
    return Csc(store.whole(csc.indptr), store.of_edges(csc.indices), csc.num_sources, csc.home)


@dataclass(frozen=True, eq=False)
class EdgeDraws:
    """Draws of in-edges of rows. Threads may share the object; kernels run without the GIL."""

    schema: Schema
    arrays: RuleArrays | StoredArrays  # edges, and arrays that rules need
    _fitting: set[Rule] = field(default_factory=set, repr=False)  # rules that passed their check

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw one hop as `GraphStore.sample_hop` does; frontiers are rows, edges are positions."""
        if hop.rule not in self._fitting:  # a check takes longer than the draw of a short row
            hop.rule.check(self.schema)
            self._fitting.add(hop.rule)
        check_types(frontier, hop, self.schema)
        requests: dict[EdgeType, DrawRequest] = {}
        for edge_type in asked_types(frontier, hop):
            try:
                of_type = frontier[edge_type[2]]
                requests[edge_type] = hop.rule.plan(edge_type, of_type, hop, key, self.arrays)
            except ValueError as error:
                raise _named(edge_type, error) from error
        try:
            found = sample_hop(list(requests.values()), edge_ids=hop.edge_ids, threads=hop.threads)
        except ValueError:
            for edge_type, request in requests.items():
                try:
                    sample_hop([request], edge_ids=False)  # one by one, so that the error names the edge type
                except ValueError as error:
                    raise _named(edge_type, error) from error
            raise
        drawn = dict(zip(requests, found, strict=True))
        for edge_type, request in requests.items():
            if request.kernel is None:
                _check_promises(edge_type, hop, drawn[edge_type])
        return drawn


def _check_promises(edge_type: EdgeType, hop: Hop, drawn: Neighbors) -> None:
    """Raise ValueError unless neighbors drawn by a rule's reference match the rule's declarations."""
    rule, fanout, degrees = hop.rule, hop.fanouts[edge_type], drawn.offsets.diff()
    most = rule.most(fanout)
    if most is not None and degrees.numel() and int(degrees.max()) > most:
        given = f"gave a row {int(degrees.max())} edges"
        raise ValueError(f"edge type {edge_type}: {rule}: {given}, where most({fanout}) is {most}")
    if (drawn.weights is not None) != rule.has_weights(fanout):
        given = "gave no weights" if drawn.weights is None else "gave weights"
        stated = f"has_weights({fanout}) is {rule.has_weights(fanout)}"
        raise ValueError(f"edge type {edge_type}: {rule}: {given}, where {stated}")


def check_hop(frontier: FrontierByType, hop: Hop, schema: Schema) -> None:
    """Raise ValueError unless the graph fits a hop, and frontiers have the fields that its rule reads."""
    hop.rule.check(schema)
    check_types(frontier, hop, schema)


def check_types(frontier: FrontierByType, hop: Hop, schema: Schema) -> None:
    """Raise ValueError unless the graph has a hop's edge types, and frontiers its rule's fields."""
    for edge_type in hop.fanouts:
        check_edge_type(edge_type, schema)
    for edge_type in asked_types(frontier, hop):
        try:
            check_frontier(hop.rule, frontier[edge_type[2]])
        except ValueError as error:
            raise _named(edge_type, error) from error


def check_edge_type(edge_type: EdgeType, schema: Schema) -> None:
    """Raise ValueError that lists the existing edge types if the schema has no such edge type."""
    if edge_type not in schema.edge_types:
        raise ValueError(f"no edge type {edge_type!r}; there are {list(schema.edge_types)}")


def asked_types(frontier: FrontierByType, hop: Hop) -> list[EdgeType]:
    """Return the edge types that a hop draws from, in the order of its fanouts."""
    return [edge_type for edge_type in hop.fanouts if edge_type[2] in frontier]


def _named(edge_type: EdgeType, error: ValueError) -> ValueError:
    """Return the error with the edge type in its message."""
    return ValueError(f"edge type {edge_type}: {error}")
