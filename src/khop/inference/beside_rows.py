"""Rows of a layer by node type, beside the columns of edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from khop.features.store import FeatureStore, FeatureStoreBase, Gathered, Rows, Wanted
from khop.schema import ColumnSpec, Specs, Type


@dataclass(frozen=True, eq=False)
class BesideRows(FeatureStoreBase):
    """A feature store with node rows of one store and edge columns of another."""

    rows: FeatureStore
    edges: FeatureStore

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        found: dict[Type, Mapping[str, ColumnSpec]] = dict(self.rows.specs)
        found |= {t: of_type for t, of_type in self.edges.specs.items() if isinstance(t, tuple)}
        return found

    @property
    def is_collective(self) -> bool:
        """True if a gather of one of the stores asks other ranks."""
        return self.rows.is_collective or self.edges.is_collective

    def local_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads in this process."""
        return (self.edges if isinstance(type_, tuple) else self.rows).local_rows(type_)

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather from each store once, in the same order on all ranks."""
        of_nodes: Mapping[Type, Rows] = {t: rows for t, rows in wanted.items() if isinstance(t, str)}
        of_edges: Mapping[Type, Rows] = {t: rows for t, rows in wanted.items() if isinstance(t, tuple)}
        return {**self.rows.gather(of_nodes), **self.edges.gather(of_edges)}

    def with_threads(self, threads: int) -> FeatureStore:
        """Return a store that gathers with up to `threads` threads."""
        return BesideRows(self.rows.with_threads(threads), self.edges.with_threads(threads))
