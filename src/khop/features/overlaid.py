"""A feature store some of whose types are answered by another."""

from __future__ import annotations

from dataclasses import dataclass

from khop.features.store import FeatureStore, Gathered, Wanted
from khop.features.table import FeatureTable


@dataclass(frozen=True, eq=False)
class OverlaidFeatures:
    """Rows of the types that `table` has come from it, all others from `below`."""

    below: FeatureStore
    table: FeatureTable

    @property
    def lanes(self) -> object | None:
        """By which `below` asks other ranks, where it does."""
        return getattr(self.below, "lanes", None)

    def gather(self, wanted: Wanted) -> Gathered:
        """The rows of all columns wanted; see FeatureStore. Both are asked, also for nothing."""
        above = {t: rows for t, rows in wanted.items() if t in self.table.columns}
        gathered = self.below.gather({t: rows for t, rows in wanted.items() if t not in above})
        gathered.update(self.table.gather(above))
        return {t: gathered[t] for t in wanted}
