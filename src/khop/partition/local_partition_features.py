"""The columns of the parts that a process holds, gathered by global ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from torch import Tensor

from khop.features.cache_plan import CachePlan
from khop.features.store import FeatureStoreBase, Gathered, Rows, Tensors, Wanted
from khop.features.table import ColumnPieces, read_rows
from khop.kernels.memory import free_memory_bytes
from khop.kernels.owners import first_outside
from khop.partition.column_pieces import column_pieces, is_on_disk, keeping
from khop.partition.parts_folder import PartsFolder, held_parts
from khop.schema import EdgeType, NodeType, Specs


@dataclass(frozen=True, eq=False)
class LocalPartitionFeatures(FeatureStoreBase):
    """A feature store over consecutive parts. An edge is identified by its global position over all parts.

    A gather only reads, so threads may share the store. The result does not depend on `threads`.
    """

    folder: PartsFolder
    threads: int = 1  # threads of one gather
    places: Mapping[str, str] = field(default_factory=dict)  # "host", "mapped" or "disk", by column name
    room_bytes: int | None = None  # memory for all parts; beyond it the largest columns stay on disk
    pieces: Mapping[NodeType | EdgeType, ColumnPieces] = field(init=False, repr=False)  # one per part

    def __post_init__(self) -> None:
        room_bytes = free_memory_bytes() // 4 * 3 if self.room_bytes is None else self.room_bytes
        object.__setattr__(self, "pieces", column_pieces(self.folder, self.places, room_bytes))

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        there = self.folder.schema.columns
        return {t: {name: there[t][name] for name in of_type} for t, of_type in self.pieces.items()}

    def local_rows(self, type_: NodeType | EdgeType) -> range:
        """Return the rows of the open parts."""
        bounds = self.folder.bounds(type_)
        return range(bounds[0], bounds[-1])

    def whole_columns(self) -> Tensors:
        """Return the complete columns of every type; see `PartsFolder.columns`."""
        return self.folder.columns()

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather the requested rows of each column, in the order of the ids.

        Raises ValueError that names the missing type, column or row.
        """
        return {type_: self._rows(type_, rows) for type_, rows in wanted.items()}

    def with_threads(self, threads: int) -> LocalPartitionFeatures:
        """Return a store of the same columns that uses up to `threads` threads for each gather."""
        return self._with("threads", threads)

    def cached(self, plan: CachePlan) -> LocalPartitionFeatures:
        """Return a store that keeps the rows of a plan in memory, of the columns on disk.

        Unsupported if no column is on disk.
        """
        if not any(is_on_disk(of_type) for of_type in self.pieces.values()):
            super().cached(plan)
        firsts = {t: self.local_rows(t).start for t in plan.ids}
        return self._with("pieces", keeping(self.pieces, firsts, plan))

    def _with(self, name: str, value: object) -> LocalPartitionFeatures:
        store = copy(self)  # not `replace`, which would open the columns again
        object.__setattr__(store, name, value)
        return store

    def _rows(self, type_: NodeType | EdgeType, rows: Rows) -> dict[str, Tensor]:
        self._check(type_, rows)
        first, specs = self.folder.bounds(type_)[0], self.folder.schema.columns[type_]
        of_held = replace(rows, ids=rows.ids - first) if first else rows
        return read_rows(self.pieces[type_], specs, type_, of_held, self.threads)

    def __reduce__(self) -> tuple[Callable[..., LocalPartitionFeatures], tuple[object, ...]]:
        return LocalPartitionFeatures, (self.folder, self.threads, dict(self.places), self.room_bytes)

    def _check(self, type_: NodeType | EdgeType, rows: Rows) -> None:
        there = self.pieces
        if type_ not in there:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(there)}")
        for name in rows.columns:
            if name not in there[type_]:
                raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(there[type_])}")
        bounds = self.folder.bounds(type_)
        position = first_outside(rows.ids, bounds)
        if position >= 0 and rows.columns:
            raise ValueError(
                f"column {rows.columns[0]!r} of {type_!r}: row id {int(rows.ids[position])} at position "
                f"{position}: must be in [{bounds[0]}, {bounds[-1]}), the rows of {held_parts(self.folder)}"
            )
