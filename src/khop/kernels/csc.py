"""The adjacency of one edge type: a row of sources per destination."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Csc:
    """In-edges grouped by destination: row v is `indices[indptr[v]:indptr[v + 1]]`."""

    indptr: Tensor  # int64 (rows + 1)
    indices: Tensor  # int32 or int64 (edges), source ids

    @property
    def num_rows(self) -> int:
        """Destinations, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Edges of all rows."""
        return self.indices.numel()
