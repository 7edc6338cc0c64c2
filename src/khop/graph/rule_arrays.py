"""Arrays that rules need from columns: running sums of weights, and times that ascend within each row.

Order of the edges of one destination: as given, or by a column of times.

Draws from edges in this process. Whole graphs and partitions share this code.

Arrays that draws read, in memory of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from khop.draw import DrawKey, FrontierByType, Neighbors, NeighborsByType
from khop.graph.derived import Derived
from khop.graph.inputs import Given
from khop.graph.layout import edge_array, edge_column, node_column
from khop.graph.rule import Hop, Need, NeedKind, Rule, check_frontier
from khop.kernels.csc import Csc, damaged
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import (
    descending_keys,
    first_unsorted,
    parallel_rows,
    relation_counts,
    sort_rows,
    weight_sums,
)
from khop.kernels.edge_times import EdgeTimes, Rising, outline, outline_size, whole_numbers
from khop.kernels.memory import expect_random_access
from khop.kernels.sample_hop import sample_hop
from khop.schema import EdgeType, NodeType, Schema

Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
_THREADS = 2  # threads per array; the waiting process has others


@dataclass(frozen=True)
class Sources:
    """Sources of the edges of a partition: nodes of all partitions."""

    original_ids: Mapping[NodeType, Tensor]  # int64 (nodes of all partitions)
    columns: Mapping[NodeType, Collection[str]]  # names of columns that lie in all partitions


@dataclass(frozen=True, eq=False)
class RuleArrays:
    """Arrays for rules (`DrawArrays`), made on first use and cached; threads may share the object."""

    edges: Mapping[EdgeType, Csc]
    columns: Columns  # one row per node, or per edge in CSC order
    original_ids: Mapping[NodeType, Tensor] = field(default_factory=dict)  # int64 (rows), if not the rows
    sorted_by: Mapping[EdgeType, str] = field(default_factory=dict)  # the column that rows are sorted by
    derived: Derived = field(default_factory=Derived)
    kept_times: Mapping[EdgeType, Tensor] = field(
        default_factory=dict
    )  # times of edges by the column in `sorted_by`, where `columns` lacks the times of sources
    sources: Sources | None = None  # of a partition
    _source_ids: dict[EdgeType, Tensor] = field(default_factory=dict)
    _vectors: dict[Need, Tensor | None] = field(default_factory=dict)
    _rising: set[tuple[EdgeType, str]] = field(default_factory=set)  # columns known to ascend within rows
    _own_times: dict[tuple[EdgeType, str], EdgeTimes | None] = field(default_factory=dict)
    _prepared: set[str] = field(default_factory=set)  # arrays with prepared memory

    def prepare(self, need: Need) -> None:
        """Make an array that a rule needs."""
        make: Mapping[NeedKind, Callable[[], object]] = {
            NeedKind.COLUMN: lambda: self.column(need.edge_type, need.column),
            NeedKind.WEIGHT_SUMS: lambda: self.weight_sums(need.edge_type, need.column),
            NeedKind.TIMES: lambda: self.times(need.edge_type, need.column),
            NeedKind.SOURCE_IDS: lambda: self.source_ids(need.edge_type),
            NeedKind.PARALLEL_ROWS: lambda: self.vector(need),
            NeedKind.DESCENDING: lambda: self.vector(need),
            NeedKind.RELATION_COUNTS: lambda: self.vector(need),
        }
        make[need.kind]()

    def column(self, edge_type: EdgeType, name: str) -> Tensor | None:
        """Return a column of the edges; None without the column."""
        return self.columns.get(edge_type, {}).get(name)

    def source_ids(self, edge_type: EdgeType) -> Tensor:
        """Return the original id of each edge's source, (edges); ids of a renumbered type stay in memory."""
        if edge_type not in self._source_ids:
            csc = self.edges[edge_type]
            csc.check()
            originals = self.original_ids if self.sources is None else self.sources.original_ids
            ids = originals.get(edge_type[0])
            self._source_ids[edge_type] = csc.indices if ids is None else ids[csc.indices.long()]
        return self._source_ids[edge_type]

    def vector(self, need: Need) -> Tensor | None:
        """Return rows in which edges share a source, or the vector of a column; see DrawArrays."""
        if need not in self._vectors:
            make = {
                NeedKind.PARALLEL_ROWS: _parallel_rows,
                NeedKind.DESCENDING: _descending,
                NeedKind.RELATION_COUNTS: _relation_counts,
            }[need.kind]
            self._vectors[need] = make(self, need)
        return self._vectors[need]

    def weight_sums(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return running sums of an edge type's weights for `sample_weighted`; None without the column."""
        weights = self.columns.get(edge_type, {}).get(column)
        if weights is None:
            return None
        csc = self.edges[edge_type]
        csc.check()

        def make() -> Tensor:
            try:
                return weight_sums(csc, weights, threads=_THREADS)
            except ValueError as error:
                raise ValueError(f"column {column!r}: {error}") from error

        name, sources = _name(edge_type, f"weight_sums.{column}"), self._sources(edge_type, column)
        sums = self.derived.vector(name, csc.num_edges, make, sources)
        return self._outlined(name, csc, _searched(self._prepared, name, sums), sources)

    def times(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return the time of each edge, or of its source, or the later of both; None without either column.

        ValueError unless the times ascend within each row, which a process checks on first use, and for times
        of sources that lie in other partitions.
        """
        in_all_parts = () if self.sources is None else self.sources.columns.get(edge_type[0], ())
        if column in in_all_parts and self.sorted_by.get(edge_type) != column:
            raise ValueError(
                f"rows do not follow {column!r}, a column of its sources, which are in all parts; sort the "
                f"graph, `khop graph sort GRAPH OUT --by {column}`, and partition the result"
            )
        csc, own = self.edges[edge_type], self.own_times(edge_type, column)
        if own is None:
            return None
        self._check_order(edge_type, column, own)
        name, sources = _name(edge_type, f"times.{column}"), self._sources(edge_type, column)
        if own.edges is not None and own.edges.dtype == torch.int64 and own.sources is None:
            return self._outlined(name, csc, own.edges, sources)
        values = self.derived.vector(name, csc.num_edges, lambda: own.of(csc), sources)
        return self._outlined(name, csc, _searched(self._prepared, name, values), sources)

    def own_times(self, edge_type: EdgeType, column: str) -> EdgeTimes | None:
        """Return the times of edges and of sources as the graph stores them; None if it has neither."""
        key = edge_type, column
        if key not in self._own_times:
            own = self.columns.get(edge_type, {}).get(column)
            if self.sorted_by.get(edge_type) == column:
                own = self.kept_times.get(edge_type, own)
            columns = (own, self.columns.get(edge_type[0], {}).get(column))
            edges, sources = (None if times is None else whole_numbers(times) for times in columns)
            self._own_times[key] = None if edges is None and sources is None else EdgeTimes(edges, sources)
        return self._own_times[key]

    def _outlined(self, name: str, csc: Csc, values: Tensor, sources: Sequence[str]) -> Rising:
        def make() -> Tensor:
            return outline(csc, values, threads=_THREADS)

        outline_name = name.replace(".", "_outline.", 1)  # no column of sums or times has such a name
        codes = self.derived.vector(outline_name, outline_size(csc), make, sources, "int16")
        return Rising(values, _searched(self._prepared, outline_name, codes))

    def _sources(self, edge_type: EdgeType, column: str) -> tuple[str, ...]:
        """Return the files that sums and times of a column are computed from."""
        files = [edge_array(edge_type, name) for name in ("indptr", "indices")]
        if self.sorted_by.get(edge_type) == column and edge_type in self.kept_times:
            files.append(edge_array(edge_type, "times"))
        if column in self.columns.get(edge_type, {}):
            files.append(edge_column(edge_type, column))
        if column in self.columns.get(edge_type[0], {}):
            files.append(node_column(edge_type[0], column))
        return tuple(files)

    def _check_order(self, edge_type: EdgeType, column: str, own: EdgeTimes) -> None:
        """Raise ValueError unless every row is sorted by the graph's own times: one pass on first use."""
        if (edge_type, column) in self._rising:
            return
        csc = self.edges[edge_type]
        csc.check()
        position = first_unsorted(csc, own, threads=_THREADS)
        if position >= 0 and self.sorted_by.get(edge_type) == column:
            row = int(torch.searchsorted(csc.indptr, position, right=True)) - 1
            problem = (
                f"row {row} is said to be in the order of {column!r}, but the edge at position {position} is "
                "earlier than the one before it"
            )
            self.derived.check_sources(self._sources(edge_type, column), problem)  # raises if one is damaged
            raise damaged(csc.home, "times", problem)
        if position >= 0:
            raise ValueError(
                f"rows are not sorted by {column!r}: the edge at position {position} is earlier than the one "
                f"before it; `khop graph sort GRAPH OUT --by {column}` writes a graph whose rows are, and so "
                f"do sort_by={column!r} of khop.write_graph and csc_graph_from_edges"
            )
        for times in (own.edges, own.sources):
            if times is not None:
                expect_random_access(times)
        self._rising.add((edge_type, column))


def edge_times(csc: Csc, edge_type: EdgeType, columns: Columns, column: str) -> Tensor | None:
    """Return int64 (edges): the edges' column, or their sources' column, or the later of both."""
    own, sources = (columns.get(type_, {}).get(column) for type_ in (edge_type, edge_type[0]))
    return None if own is None and sources is None else EdgeTimes(own, sources).of(csc)


def _parallel_rows(arrays: RuleArrays, need: Need) -> Tensor | None:
    """Return 1 for each row in which edges share a source, uint8 (rows); None if there is none."""
    csc, edge_type = arrays.edges[need.edge_type], need.edge_type
    found = arrays.derived.vector(
        _name(edge_type, "parallel_rows"),
        csc.num_rows,
        lambda: parallel_rows(csc, threads=_THREADS),
        [edge_array(edge_type, name) for name in ("indptr", "indices")],
        "uint8",
    )
    return found if bool(found.any()) else None


def _descending(arrays: RuleArrays, need: Need) -> Tensor | None:
    """Return numbers that sort a column from its largest value, int64 (edges); None without the column."""
    edge_type, column = need.edge_type, need.column
    values = arrays.column(edge_type, column)
    if values is None:
        return None

    def make() -> Tensor:
        try:
            return descending_keys(values)
        except ValueError as error:
            raise ValueError(f"column {column!r}: {error}") from error

    name, files = _name(edge_type, f"descending.{column}"), (edge_column(edge_type, column),)
    return arrays.derived.vector(name, values.numel(), make, files)


def _relation_counts(arrays: RuleArrays, need: Need) -> Tensor | None:
    """Return the edges of the row with the same value of a column, int32 (edges); None without the column."""
    edge_type, column = need.edge_type, need.column
    values = arrays.column(edge_type, column)
    if values is None:
        return None
    csc = arrays.edges[edge_type]
    return arrays.derived.vector(
        _name(edge_type, f"relation_counts.{column}"),
        csc.num_edges,
        lambda: relation_counts(csc, values),
        [edge_array(edge_type, "indptr"), edge_column(edge_type, column)],
        "int32",
    )


def _searched(prepared: set[str], name: str, vector: Tensor) -> Tensor:
    """Prepare a derived vector for binary searches, on first use."""
    if name not in prepared:
        expect_random_access(vector)
        prepared.add(name)
    return vector


def _name(edge_type: EdgeType, array: str) -> str:
    return edge_array(edge_type, array).removesuffix(".npy")


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


Store = Callable[[Tensor], Tensor]  # copies a tensor to where kernels read it
_Made = Tensor | Rising | EdgeTimes | None


class StoredArrays:
    """Arrays for rules (`DrawArrays`), made on the host and copied on first use. Threads may share it."""

    def __init__(
        self,
        made: RuleArrays | StoredArrays,
        edges: Mapping[EdgeType, Csc],
        original_ids: Mapping[NodeType, Tensor],
        store: Store,
    ) -> None:
        self.edges = edges  # on the device, as `original_ids`
        self.original_ids = original_ids
        self._made = made
        self._store = store
        self._stored: dict[tuple[str, EdgeType, str], _Made] = {}
        self._lock = Lock()

    def prepare(self, need: Need) -> None:
        """Make an array that a rule needs, on the host."""
        self._made.prepare(need)

    def column(self, edge_type: EdgeType, name: str) -> Tensor | None:
        """Return a column of the edges; None without the column."""
        found = self._once("column", edge_type, name, self._made.column)
        assert found is None or isinstance(found, Tensor)
        return found

    def weight_sums(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return running sums of an edge type's weights; see DrawArrays."""
        found = self._once("sums", edge_type, column, self._made.weight_sums)
        assert found is None or isinstance(found, Rising)
        return found

    def times(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return the time of each edge; see DrawArrays."""
        found = self._once("times", edge_type, column, self._made.times)
        assert found is None or isinstance(found, Rising)
        return found

    def own_times(self, edge_type: EdgeType, column: str) -> EdgeTimes | None:
        """Return the times of edges and of sources as the graph stores them; see DrawArrays."""
        found = self._once("own times", edge_type, column, self._made.own_times)
        assert found is None or isinstance(found, EdgeTimes)
        return found

    def source_ids(self, edge_type: EdgeType) -> Tensor:
        """Return the original id of each edge's source, (edges)."""
        found = self._once("source ids", edge_type, "", lambda edge_type, _: self._made.source_ids(edge_type))
        assert isinstance(found, Tensor)
        return found

    def vector(self, need: Need) -> Tensor | None:
        """Return rows in which edges share a source, or the vector of a column; see DrawArrays."""
        made = self._made
        found = self._once(need.kind, need.edge_type, need.column, lambda *_: made.vector(need))
        assert found is None or isinstance(found, Tensor)
        return found

    def _once(
        self, what: str, edge_type: EdgeType, column: str, make: Callable[[EdgeType, str], _Made]
    ) -> _Made:
        key = what, edge_type, column
        with self._lock:
            if key not in self._stored:
                self._stored[key] = self._copy(make(edge_type, column))
            return self._stored[key]

    def _copy(self, made: _Made) -> _Made:
        match made:
            case Tensor():
                return self._store(made)
            case Rising(values, outline):
                return Rising(self._store(values), self._store(outline))
            case EdgeTimes(edges, sources):
                stored = (None if times is None else self._store(times) for times in (edges, sources))
                return EdgeTimes(*stored)
            case None:
                return None


def stored_csc(csc: Csc, store: Store) -> Csc:
    """Return the edges of a type on a device; ValueError if they are damaged: kernels there do not check."""
    csc.check()
    return Csc(store(csc.indptr), store(csc.indices), csc.num_sources, csc.home)


@dataclass(frozen=True, eq=False)
class EdgeDraws:
    """Draws of in-edges of rows. Threads may share the object; kernels run without the GIL."""

    schema: Schema
    arrays: RuleArrays | StoredArrays  # the edges, and the arrays that rules need
    _fitting: set[Rule] = field(default_factory=set, repr=False)  # rules that passed their check

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw one hop as `GraphStore.sample_hop` does; frontiers are rows and edges are positions here."""
        if hop.rule not in self._fitting:  # a check costs more than the draw of a short row
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
    """Raise ValueError unless neighbors drawn by a rule's reference are as the rule states."""
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
    """Raise ValueError unless the graph has what a hop names, and frontiers have what its rule reads."""
    hop.rule.check(schema)
    check_types(frontier, hop, schema)


def check_types(frontier: FrontierByType, hop: Hop, schema: Schema) -> None:
    """Raise ValueError unless the graph has a hop's edge types, and frontiers have what its rule reads."""
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
