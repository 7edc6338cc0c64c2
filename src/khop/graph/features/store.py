"""The FeatureStore protocol, from which batches get their columns, and the choice of rows to cache."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from khop.errors import Unsupported
from khop.kernels.csc import ChosenRows, check_ids
from khop.kernels.owners import IdSlots
from khop.schema import EdgeType, NodeType, Schema, Specs, Type

_CALL_BYTES = 64 << 20  # approximate bytes of the rows that one fill call gathers


@dataclass(frozen=True, eq=False)
class CachePlan:
    """The rows to cache. Ranks plan different rows and fill them in the same number of calls."""

    ids: Mapping[NodeType, Tensor]  # int64 (cached rows), ascending
    columns: Mapping[NodeType, tuple[str, ...]]  # of the same types
    counts: Mapping[NodeType, int]  # nodes of each type
    calls: int  # number of fill calls; depends only on the budget

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Mapping[NodeType, Sequence[str]],
        visits: Mapping[NodeType, Tensor],
        budget_bytes: int,
    ) -> CachePlan:
        """Choose the rows that batches need most often, within the budget.

        `visits` is float (nodes) for each type: how often a batch needs each node; 0 for local nodes. Ties go
        to earlier types, then to lower ids. The budget covers the rows as stored, and a little over one byte
        per node of each type with columns, for the lookup table. The plan is within the budget, and the next
        row does not fit in the remainder.
        """
        if budget_bytes < 0:
            raise ValueError(f"a cache of {budget_bytes} bytes: must be 0 or more")
        row_bytes = {t: _row_bytes(schema, t, names) for t, names in columns.items() if names}
        counts = {t: visits[t].numel() for t in row_bytes}
        room = budget_bytes - sum(IdSlots.bytes_for(count) for count in counts.values())
        kept = _most_visited({t: visits[t] for t in row_bytes}, row_bytes, room)
        calls = max(1, math.ceil(budget_bytes / _CALL_BYTES))
        return cls(kept, {t: tuple(columns[t]) for t in row_bytes}, counts, calls)


def _most_visited(
    visits: Mapping[NodeType, Tensor], row_bytes: Mapping[NodeType, int], room: int
) -> dict[NodeType, Tensor]:
    """Return the ids to cache of each type, ascending.

    A cached byte of any row saves the same traffic per visit.
    """
    candidates = {t: of_type.nonzero().flatten() for t, of_type in visits.items()}
    scores = torch.cat([torch.empty(0), *(visits[t][ids].double() for t, ids in candidates.items())])
    sizes = [torch.full((ids.numel(),), row_bytes[t]) for t, ids in candidates.items()]
    order = scores.argsort(descending=True, stable=True)
    spent = torch.cat([torch.empty(0, dtype=torch.int64), *sizes])[order].cumsum(0)
    chosen = torch.zeros(scores.numel(), dtype=torch.bool)
    chosen[order[: int(torch.searchsorted(spent, room, right=True))]] = True
    by_type = chosen.split_with_sizes([ids.numel() for ids in candidates.values()])
    return {t: ids[of_type] for (t, ids), of_type in zip(candidates.items(), by_type, strict=True)}


def _row_bytes(schema: Schema, node_type: NodeType, names: Sequence[str]) -> int:
    specs = [schema.column(node_type, name) for name in names]
    return sum(math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in specs)


@dataclass(frozen=True)
class Rows:
    """Ids and columns to gather for one type."""

    ids: Tensor  # int64 (n), global node ids, or positions in the edge type's CSC order
    columns: tuple[str, ...]
    limits: Mapping[str, int] = field(default_factory=dict)  # column -> first n ids only; default all
    as_float32: frozenset[str] = frozenset()  # columns to convert to float32


Tensors = Mapping[Type, Mapping[str, Tensor]]
Wanted = Mapping[NodeType | EdgeType, Rows]
Gathered = dict[NodeType | EdgeType, dict[str, Tensor]]


class FeatureStore(Protocol):
    """Columns that can be gathered by id. Custom stores subclass `FeatureStoreBase`.

    Every implementation passes `khop.testing.feature_store`.
    """

    is_on_servers: ClassVar[bool]  # True: servers send the columns with the batches that they make

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type. Columns of these types can be gathered."""
        ...

    @property
    def is_collective(self) -> bool:
        """True if a gather is collective: every rank must then make the same number of gathers."""
        ...

    def output_device(self, type_: Type, column: str) -> torch.device:
        """Return the device of the rows that `gather` returns for a column."""
        ...

    def local_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads in this process, without querying another one."""
        ...

    def resident_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads from memory of this process, for which a cache is useless."""
        ...

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather type -> column -> (n, ...), rows in the order of the ids.

        One call per batch gathers all types and columns. A column with a limit has that number of rows.
        Columns keep their stored dtype. Columns in `as_float32` with a narrow dtype are converted to float32;
        quantized columns are multiplied by their scales.
        """
        ...

    def with_threads(self, threads: int) -> FeatureStore:
        """Return a store of the same columns that uses up to `threads` threads for each gather."""
        ...

    def cached(self, plan: CachePlan) -> FeatureStore:
        """Return a store of the same columns that caches the rows of a plan in host memory.

        Collective if the store is; Unsupported if a cache of the store's rows has no effect.
        """
        ...

    def whole_columns(self) -> Tensors:
        """Return every column of every type; Unsupported if this process lacks some of the rows."""
        ...

    def with_columns(self, added: Tensors) -> FeatureStore:
        """Return the store with columns of additional types; Unsupported if it cannot."""
        ...

    def choosing(self, chosen: Mapping[Type, Tensor]) -> FeatureStore:
        """Return a store with some rows of some types, numbered from 0.

        `chosen` has their ids in this store, int64 (rows), ascending.
        """
        ...


class FeatureStoreBase(ABC):
    """Base of custom feature stores: a subclass has `specs` and `gather`, which several threads call.

    The other members have defaults: all rows are in this process, and gathers return CPU tensors.
    `FeatureStore` documents each member; `khop.testing.feature_store` checks an implementation.

    Example:
        >>> class Squares(khop.FeatureStoreBase):
        ...     specs = {"package": {"square": khop.ColumnSpec("int64", ())}}
        ...
        ...     def gather(self, wanted):
        ...         return {t: {name: rows.ids**2 for name in rows.columns} for t, rows in wanted.items()}
        >>> from khop.graph.features.store import Rows
        >>> Squares().gather({"package": Rows(torch.tensor([3, 5]), ("square",))})
        {'package': {'square': tensor([ 9, 25])}}
    """

    is_on_servers: ClassVar[bool] = False  # rows are read in this process, or from other ranks

    @property
    @abstractmethod
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""

    @property
    def is_collective(self) -> bool:
        """True if a gather is collective: by default False."""
        return False

    def output_device(self, type_: Type, column: str) -> torch.device:
        """Return the device of gathered rows: by default the CPU.

        Args:
            type_: Node type or edge type.
            column: Name of the column.
        """
        return torch.device("cpu")

    def local_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads in this process: by default all.

        Args:
            type_: Node type or edge type.
        """
        return range(1 << 62)

    def resident_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads from memory: by default the local rows.

        Args:
            type_: Node type or edge type.
        """
        return self.local_rows(type_)

    @abstractmethod
    def gather(self, wanted: Wanted) -> Gathered:
        """Gather rows in the order of the ids: type -> column -> (n, ...).

        One call per batch gathers all types and columns. A column with a limit has that number of rows.
        Columns keep their stored dtype. Columns in `as_float32` with a narrow dtype are converted to
        float32; quantized columns are multiplied by their scales.

        Args:
            wanted: Ids and columns by type.
        """

    def with_threads(self, threads: int) -> FeatureStore:
        """Return a store of the same columns that gathers with several threads: by default this store.

        Args:
            threads: Maximum number of threads.
        """
        return self

    def cached(self, plan: CachePlan) -> FeatureStore:
        """Return a store that caches the rows of a plan in host memory: by default Unsupported.

        Args:
            plan: Rows to cache.
        """
        raise Unsupported(
            f"a cache of rows of a {type(self).__name__} has no effect: all rows are in this process; leave "
            "it out"
        )

    def whole_columns(self) -> Tensors:
        """Raise Unsupported: the store only has `gather`."""
        raise Unsupported(f"columns: those of a {type(self).__name__} are not in this process")

    def with_columns(self, added: Tensors) -> FeatureStore:
        """Return the store with columns of additional types: by default Unsupported, unless nothing is added.

        Args:
            added: Columns by type and name.
        """
        if not any(added.values()):
            return self
        raise Unsupported(f"with_edges: columns of edges cannot join {type(self).__name__}; leave them out")

    def choosing(self, chosen: Mapping[Type, Tensor]) -> FeatureStore:
        """Return a store with some rows of some types, numbered from 0.

        Args:
            chosen: Ids of the rows in this store by type, int64 (rows), ascending.
        """
        return RenumberedRows(self, chosen)


@dataclass(frozen=True, eq=False)
class RenumberedRows(FeatureStoreBase):
    """Rows of another store. For some types, chosen rows are numbered from 0."""

    below: FeatureStore
    before: Mapping[Type, Tensor]  # int64 (rows): their ids in the other store

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column of the other store."""
        return self.below.specs

    @property
    def is_collective(self) -> bool:
        """True if a gather of the other store is collective."""
        return self.below.is_collective

    def output_device(self, type_: Type, column: str) -> torch.device:
        """Return the device of the rows that the other store returns."""
        return self.below.output_device(type_, column)

    def local_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads in this process."""
        return self._above(type_, self.below.local_rows(type_))

    def resident_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads from memory of this process."""
        return self._above(type_, self.below.resident_rows(type_))

    def _above(self, type_: Type, rows: range) -> range:
        if type_ not in self.before:
            return rows
        bounds = torch.tensor([rows.start, rows.stop])
        first, end = torch.searchsorted(self.before[type_], bounds).tolist()
        return range(first, end)

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather the requested rows of all columns; see FeatureStore."""
        return self.below.gather({t: self._below(t, rows) for t, rows in wanted.items()})

    def with_threads(self, threads: int) -> RenumberedRows:
        """Return a store of the same columns that uses up to `threads` threads for each gather."""
        return replace(self, below=self.below.with_threads(threads))

    def cached(self, plan: CachePlan) -> RenumberedRows:
        """Return a store over a cache of the other store; the plan names types that are not renumbered."""
        return replace(self, below=self.below.cached(plan))

    def whole_columns(self) -> Tensors:
        """Return every column of every type, with the chosen rows."""
        below = self.below.whole_columns()
        return {**below, **{t: ChosenRows(below.get(t, {}), at) for t, at in self.before.items()}}

    def with_columns(self, added: Tensors) -> RenumberedRows:
        """Return the store with columns of additional types in the other store."""
        return replace(self, below=self.below.with_columns(added))

    def _below(self, type_: Type, rows: Rows) -> Rows:
        if type_ not in self.before:
            return rows
        name = rows.columns[0] if rows.columns else ""
        check_ids(rows.ids, self.before[type_].numel(), f"column {name!r} of {type_!r}: row")
        return replace(rows, ids=self.before[type_][rows.ids])
