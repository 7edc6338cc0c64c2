"""Arrays that rules need from columns: running sums of weights, and times that ascend within each row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.graph.derived import Derived
from khop.graph.layout import edge_array, edge_column, node_column
from khop.kernels.csc import Csc, damaged
from khop.kernels.descending_keys import descending_keys
from khop.kernels.edge_times import EdgeTimes, whole_numbers
from khop.kernels.memory import expect_random_access
from khop.kernels.parallel_rows import parallel_rows
from khop.kernels.relation_counts import relation_counts
from khop.kernels.rising import Rising, outline, outline_size
from khop.kernels.sort_rows import first_unsorted
from khop.kernels.weight_sums import weight_sums
from khop.rules.rule import Need, NeedKind
from khop.schema import EdgeType, NodeType

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
