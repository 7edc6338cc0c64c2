"""A feature store that renumbers the rows of another store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from khop.features.store import FeatureStore, FeatureStoreBase, Gathered, Rows, Wanted
from khop.kernels.checks import check_ids
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class RenumberedRows(FeatureStoreBase):
    """Rows of another store. For some types, chosen rows are numbered from 0."""

    below: FeatureStore
    before: Mapping[NodeType | EdgeType, Tensor]  # int64 (rows): their ids in the other store

    @property
    def lanes(self) -> object | None:
        """Lanes that `below` uses to ask other ranks, if any."""
        return getattr(self.below, "lanes", None)

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather the requested rows of all columns; see FeatureStore."""
        return self.below.gather({t: self._below(t, rows) for t, rows in wanted.items()})

    def with_threads(self, threads: int) -> RenumberedRows:
        """Return a store of the same columns that uses up to `threads` threads for each gather."""
        return replace(self, below=self.below.with_threads(threads))

    def _below(self, type_: NodeType | EdgeType, rows: Rows) -> Rows:
        if type_ not in self.before:
            return rows
        name = rows.columns[0] if rows.columns else ""
        check_ids(rows.ids, self.before[type_].numel(), f"column {name!r} of {type_!r}: row")
        return replace(rows, ids=self.before[type_][rows.ids])
