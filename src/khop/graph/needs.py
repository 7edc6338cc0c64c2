"""Arrays that sampling needs, such as prefix sums of edge weights, built before the first batch.

A rule or a sampler declares its needs. Each need builds its array from the columns and edges of a store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from khop.draw import DrawnNegatives
from khop.graph.derived import Derived
from khop.graph.layout import edge_array, edge_column, node_column
from khop.kernels.csc import Csc, damaged
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import first_unsorted, weight_sums
from khop.kernels.edge_times import EdgeTimes, Rising, outline, outline_size, whole_numbers
from khop.kernels.memory import expect_random_access
from khop.schema import EdgeType, NodeType

Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
THREADS = 2  # threads per array, separate from those of the waiting process

Made = TypeVar("Made")


@dataclass(frozen=True)
class Sources:
    """Sources of the edges of a partition: nodes of all partitions."""

    original_ids: Mapping[NodeType, Tensor]  # int64 (nodes of all partitions)
    columns: Mapping[NodeType, Collection[str]]  # names of columns that are in all partitions


class Arrays(ABC):
    """The arrays of a store that draws read, with the store's rows and positions."""

    edges: Mapping[EdgeType, Csc]
    original_ids: Mapping[NodeType, Tensor]  # ids that key draws, int64 (rows), if they differ from rows

    @abstractmethod
    def __getitem__(self, need: RuleNeed[Made]) -> Made | None:
        """Return the array of a need, built on first use; None if the edge type lacks its column."""


@dataclass(frozen=True)
class RuleNeed(ABC, Generic[Made]):
    """An array that draws of an edge type read. A store builds it before the first draw.

    Subclasses build it in `made`.
    """

    any_column: ClassVar[bool] = False  # True: the column may have any dtype and shape
    of_integers: ClassVar[bool] = False  # True: the column has one integer per row
    of_sources: ClassVar[bool] = False  # True: the column may also be one of the edges' sources
    by_edge: ClassVar[bool] = False  # True: the array is a tensor with an entry per edge

    edge_type: EdgeType
    column: str = ""  # the column that the array is made from

    @abstractmethod
    def made(self, arrays: RuleArrays) -> Made | None:
        """Build the array from the columns of a store."""

    def given(self, request: DrawRequest, arrays: Arrays) -> DrawRequest:
        """Return a request with the array, if requests have a field for it."""
        return request


class EdgeColumn(RuleNeed[Tensor]):
    """A column of the edges, (edges, ...)."""

    any_column = True
    by_edge = True

    def made(self, arrays: RuleArrays) -> Tensor | None:
        """Return the column."""
        return arrays.columns.get(self.edge_type, {}).get(self.column)

    def given(self, request: DrawRequest, arrays: Arrays) -> DrawRequest:
        """Return the request with the column by its name."""
        column = arrays[self]
        return (
            request if column is None else replace(request, columns={**request.columns, self.column: column})
        )


class SourceIds(RuleNeed[Tensor]):
    """The original id of each edge's source, (edges), as wide as the graph stores it, or int64.

    Ids of a renumbered type stay in memory.
    """

    by_edge = True

    def made(self, arrays: RuleArrays) -> Tensor:
        """Return the ids."""
        csc = arrays.edges[self.edge_type]
        csc.check()
        originals = arrays.original_ids if arrays.sources is None else arrays.sources.original_ids
        ids = originals.get(self.edge_type[0])
        return csc.indices if ids is None else ids[csc.indices.long()]

    def given(self, request: DrawRequest, arrays: Arrays) -> DrawRequest:
        """Return the request with the ids."""
        return replace(request, source_ids=arrays[self])


class WeightSums(RuleNeed[Rising]):
    """Running sums of a column of weights within each row."""

    def made(self, arrays: RuleArrays) -> Rising | None:
        """Compute the sums."""
        edge_type, column = self.edge_type, self.column
        weights = arrays.columns.get(edge_type, {}).get(column)
        if weights is None:
            return None
        csc = arrays.edges[edge_type]
        csc.check()

        def make() -> Tensor:
            try:
                return weight_sums(csc, weights, threads=THREADS)
            except ValueError as error:
                raise ValueError(f"column {column!r}: {error}") from error

        name, files = derived_name(edge_type, f"weight_sums.{column}"), arrays.files_of(edge_type, column)
        sums = arrays.derived.vector(name, csc.num_edges, make, files)
        return arrays.outlined(name, csc, _searched(arrays.prepared, name, sums), files)

    def given(self, request: DrawRequest, arrays: Arrays) -> DrawRequest:
        """Return the request with the sums."""
        return replace(request, sums=arrays[self])


class StoredTimes(RuleNeed[EdgeTimes]):
    """The stored times of edges and of their sources."""

    of_integers = True
    of_sources = True

    def made(self, arrays: RuleArrays) -> EdgeTimes | None:
        """Return both columns as integers; None if the graph has neither."""
        edge_type, column = self.edge_type, self.column
        own = arrays.columns.get(edge_type, {}).get(column)
        if arrays.sorted_by.get(edge_type) == column:
            own = arrays.kept_times.get(edge_type, own)
        columns = (own, arrays.columns.get(edge_type[0], {}).get(column))
        edges, sources = (None if times is None else whole_numbers(times) for times in columns)
        return None if edges is None and sources is None else EdgeTimes(edges, sources)


class RisingTimes(RuleNeed[Rising]):
    """The time of each edge, or of its source, or the later of both, ascending within each row."""

    of_integers = True
    of_sources = True

    def made(self, arrays: RuleArrays) -> Rising | None:
        """Return the times; None without either column.

        ValueError unless they ascend within each row, which a process checks on first use, and for times of
        sources in other partitions.
        """
        edge_type, column = self.edge_type, self.column
        in_all_parts = () if arrays.sources is None else arrays.sources.columns.get(edge_type[0], ())
        if column in in_all_parts and arrays.sorted_by.get(edge_type) != column:
            raise ValueError(
                f"rows do not follow {column!r}, a column of its sources, which are in all parts; sort the "
                f"graph, `khop graph sort GRAPH OUT --by {column}`, and partition the result"
            )
        csc, own = arrays.edges[edge_type], arrays[StoredTimes(edge_type, column)]
        if own is None:
            return None
        arrays.check_order(edge_type, column, own)
        name, files = derived_name(edge_type, f"times.{column}"), arrays.files_of(edge_type, column)
        if own.edges is not None and own.edges.dtype == torch.int64 and own.sources is None:
            return arrays.outlined(name, csc, own.edges, files)
        values = arrays.derived.vector(name, csc.num_edges, lambda: own.of(csc), files)
        return arrays.outlined(name, csc, _searched(arrays.prepared, name, values), files)


@dataclass(frozen=True, eq=False)
class RuleArrays(Arrays):
    """Arrays for rules, built on first use from columns and cached; threads may share the object."""

    edges: Mapping[EdgeType, Csc]
    columns: Columns  # one row per node, or per edge in CSC order
    original_ids: Mapping[NodeType, Tensor] = field(default_factory=dict)  # int64 (rows), if not the rows
    sorted_by: Mapping[EdgeType, str] = field(default_factory=dict)  # the column that rows are sorted by
    derived: Derived = field(default_factory=Derived)
    kept_times: Mapping[EdgeType, Tensor] = field(
        default_factory=dict
    )  # times of edges by the column in `sorted_by`, where `columns` lacks the times of sources
    sources: Sources | None = None  # of a partition
    _made: dict[RuleNeed[Any], Any] = field(default_factory=dict)
    _rising: set[tuple[EdgeType, str]] = field(default_factory=set)  # columns known to ascend within rows
    prepared: set[str] = field(default_factory=set)  # arrays with prepared memory

    def __getitem__(self, need: RuleNeed[Made]) -> Made | None:
        """Return the array of a need; it builds itself on first use."""
        if need not in self._made:
            self._made[need] = need.made(self)
        found: Made | None = self._made[need]
        return found

    def outlined(self, name: str, csc: Csc, values: Tensor, sources: Sequence[str]) -> Rising:
        """Return values that ascend within rows, with the outline for searching them."""

        def make() -> Tensor:
            return outline(csc, values, threads=THREADS)

        outline_name = name.replace(".", "_outline.", 1)  # columns of sums or times never have this name
        codes = self.derived.vector(outline_name, outline_size(csc), make, sources, "int16")
        return Rising(values, _searched(self.prepared, outline_name, codes))

    def files_of(self, edge_type: EdgeType, column: str) -> tuple[str, ...]:
        """Return the files that sums and times of a column are computed from."""
        files = [edge_array(edge_type, name) for name in ("indptr", "indices")]
        if self.sorted_by.get(edge_type) == column and edge_type in self.kept_times:
            files.append(edge_array(edge_type, "times"))
        if column in self.columns.get(edge_type, {}):
            files.append(edge_column(edge_type, column))
        if column in self.columns.get(edge_type[0], {}):
            files.append(node_column(edge_type[0], column))
        return tuple(files)

    def check_order(self, edge_type: EdgeType, column: str, own: EdgeTimes) -> None:
        """Raise ValueError unless every row is sorted by the graph's times: one pass on first use."""
        if (edge_type, column) in self._rising:
            return
        csc = self.edges[edge_type]
        csc.check()
        position = first_unsorted(csc, own, threads=THREADS)
        if position >= 0 and self.sorted_by.get(edge_type) == column:
            row = int(torch.searchsorted(csc.indptr, position, right=True)) - 1
            problem = (
                f"row {row} is said to be in the order of {column!r}, but the edge at position {position} is "
                "earlier than the one before it"
            )
            self.derived.check_sources(self.files_of(edge_type, column), problem)  # raises if one is damaged
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


Store = Callable[[Tensor], Tensor]  # copies a tensor to where kernels read it


@dataclass(frozen=True)
class ArrayStore:
    """Copies of a graph's arrays for the kernels of a device.

    Ranks of a machine may divide the arrays of edges. Copying these is then collective, and all ranks need
    the same arrays in the same order.
    """

    whole: Store  # of row pointers and of arrays with an entry per node
    of_edges: Store  # of arrays with an entry per edge


class StoredArrays(Arrays):
    """Arrays built on the host and copied to a device on first use. Threads may share it."""

    def __init__(
        self,
        made: Arrays,
        edges: Mapping[EdgeType, Csc],
        original_ids: Mapping[NodeType, Tensor],
        store: ArrayStore,
    ) -> None:
        self.edges = edges  # on the device, as `original_ids`
        self.original_ids = original_ids
        self.on_host = made
        self._store = store
        self._stored: dict[RuleNeed[Any], Any] = {}
        self._lock = Lock()

    def __getitem__(self, need: RuleNeed[Made]) -> Made | None:
        """Return the array of a need on the device."""
        with self._lock:
            if need not in self._stored:
                made: Made | None = self.on_host[need]
                self._stored[need] = self._copy(made, need.by_edge)
            found: Made | None = self._stored[need]
            return found

    def _copy(self, made: object, by_edge: bool) -> object:
        whole, of_edges = self._store.whole, self._store.of_edges
        match made:
            case Tensor():
                return of_edges(made) if by_edge else whole(made)
            case Rising(values, outline):
                return Rising(of_edges(values), outline)  # no kernel of a device reads the outline
            case EdgeTimes(edges, sources):
                return EdgeTimes(
                    None if edges is None else of_edges(edges), None if sources is None else whole(sources)
                )
        return made


def _searched(prepared: set[str], name: str, vector: Tensor) -> Tensor:
    """Prepare a derived vector for binary searches, on first use."""
    if name not in prepared:
        expect_random_access(vector)
        prepared.add(name)
    return vector


def derived_name(edge_type: EdgeType, array: str) -> str:
    """Return the name of an array that is derived from the edges of a type."""
    return edge_array(edge_type, array).removesuffix(".npy")


@dataclass(frozen=True)
class NegativeNeed:
    """The arrays from which negatives of an edge type's links are drawn."""

    edge_type: EdgeType
    negatives: DrawnNegatives
    time_column: str | None = None  # of the nodes, if links have times
    relation_column: str | None = None  # of the edges, if links have relations


Need = RuleNeed[Any] | NegativeNeed


def rule_needs(needs: Collection[Need]) -> list[RuleNeed[Any]]:
    """Return the needs of rules."""
    return [need for need in needs if isinstance(need, RuleNeed)]


def negative_needs(needs: Collection[Need]) -> list[NegativeNeed]:
    """Return the needs of negatives."""
    return [need for need in needs if isinstance(need, NegativeNeed)]
