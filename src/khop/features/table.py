"""Columns that lie in this process: in memory or mapped from a graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from khop.features.store import Gathered, Wanted
from khop.kernels.gather import gather
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """A feature store over whole columns, `type -> name -> (rows, ...)`, edge columns in CSC order.

    Gathering only reads, so threads may share a table. The result does not depend on `threads`.
    """

    columns: Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
    threads: int = 1  # of one gather

    def gather(self, wanted: Wanted) -> Gathered:
        """The rows of all columns wanted, in the order of the ids; ValueError names what is missing."""
        return {
            type_: {name: self._rows(type_, name, rows.ids[: rows.limits.get(name)]) for name in rows.columns}
            for type_, rows in wanted.items()
        }

    def _rows(self, type_: NodeType | EdgeType, name: str, ids: Tensor) -> Tensor:
        if type_ not in self.columns:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(self.columns)}")
        columns = self.columns[type_]
        if name not in columns:
            raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(columns)}")
        try:
            return gather(columns[name], ids, threads=self.threads)
        except ValueError as error:
            raise ValueError(f"column {name!r} of {type_!r}: {error}") from error
