"""Protocol between a batch and the storage of its columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from torch import Tensor

from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class Rows:
    """Ids and columns to gather for one type."""

    ids: Tensor  # int64 (n), global node ids, or positions in the edge type's CSC order
    columns: tuple[str, ...]
    limits: Mapping[str, int] = field(default_factory=dict)  # column -> first n ids only; default all
    as_float32: frozenset[str] = frozenset()  # columns to convert to float32


Wanted = Mapping[NodeType | EdgeType, Rows]
Gathered = dict[NodeType | EdgeType, dict[str, Tensor]]


class FeatureStore(Protocol):
    """Columns that can be gathered by id. A store of your own subclasses `FeatureStoreBase`.

    Every implementation passes tests/contracts/feature_store.py.
    """

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


class FeatureStoreBase(ABC):
    """A feature store of your own: a subclass writes `gather`, which is called from several threads."""

    @abstractmethod
    def gather(self, wanted: Wanted) -> Gathered:
        """Gather type -> column -> (n, ...), rows in the order of the ids; see FeatureStore."""

    def with_threads(self, threads: int) -> Self:
        """Return this store: it uses one thread for each gather."""
        return self
