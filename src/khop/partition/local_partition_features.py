"""The columns of the parts that a process holds, gathered by global ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from torch import Tensor

from khop.features.store import FeatureStoreBase, Gathered, Rows, Tensors, Wanted
from khop.features.table import ColumnPieces, read_rows
from khop.graph.feature_columns import feature_columns
from khop.kernels.memory import memory_limit_bytes
from khop.kernels.owners import first_outside
from khop.partition.parts_folder import PartsFolder, held_parts
from khop.schema import EdgeType, NodeType, Specs


@dataclass(frozen=True, eq=False)
class LocalPartitionFeatures(FeatureStoreBase):
    """A feature store over consecutive parts. An edge is identified by its global position over all parts.

    A gather only reads, so threads may share the store. The result does not depend on `threads`.
    """

    folder: PartsFolder
    threads: int = 1  # threads of one gather
    pieces: Mapping[NodeType | EdgeType, ColumnPieces] = field(init=False, repr=False)  # one per part

    def __post_init__(self) -> None:
        specs = self.folder.schema.columns
        room_bytes = memory_limit_bytes() // 4 * 3 // max(len(self.folder.parts), 1)
        of_parts = [feature_columns(part, room_bytes) for part in self.folder.parts]
        pieces = {
            t: {n: tuple(of[t][n] for of in of_parts) for n in specs[t] if all(n in of[t] for of in of_parts)}
            for t in specs
        }
        object.__setattr__(self, "pieces", pieces)

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
        store = copy(self)  # not `replace`, which would map the columns again
        object.__setattr__(store, "threads", threads)
        return store

    def _rows(self, type_: NodeType | EdgeType, rows: Rows) -> dict[str, Tensor]:
        self._check(type_, rows)
        first, specs = self.folder.bounds(type_)[0], self.folder.schema.columns[type_]
        of_held = replace(rows, ids=rows.ids - first) if first else rows
        return read_rows(self.pieces[type_], specs, type_, of_held, self.threads)

    def __reduce__(self) -> tuple[Callable[..., LocalPartitionFeatures], tuple[PartsFolder, int]]:
        return LocalPartitionFeatures, (self.folder, self.threads)

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
