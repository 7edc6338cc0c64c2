"""The seam between a batch and where its columns lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class Rows:
    """The rows wanted of one type."""

    ids: Tensor  # int64 (n), global node ids, or positions in the edge type's CSC order
    columns: tuple[str, ...]
    limits: Mapping[str, int] = field(default_factory=dict)  # column -> only the first so many ids; else all
    as_float32: frozenset[str] = frozenset()  # of the columns, those whose numbers are wanted as float32


Wanted = Mapping[NodeType | EdgeType, Rows]
Gathered = dict[NodeType | EdgeType, dict[str, Tensor]]


class FeatureStore(Protocol):
    """Columns that can be gathered by id. Every implementation passes tests/contracts/feature_store.py."""

    def gather(self, wanted: Wanted) -> Gathered:
        """Type -> column -> (n, ...), rows in the order of the ids.

        One call per batch, all types and columns together. A column with a limit has that many rows.
        Columns come as they are stored; where float32 is wanted, numbers of a narrow dtype are widened on
        the way, times their scale where the column was quantized.
        """
        ...
