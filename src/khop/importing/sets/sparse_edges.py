"""Edges of sparse matrices as .npz files store them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def csr_edges(indptr: npt.NDArray[Any], indices: npt.NDArray[Any]) -> tuple[Ids, Ids]:
    """Return sources (rows) and destinations (columns) of a matrix in rows."""
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))
    return rows, indices.astype(np.int64)


def distinct_edges(sources: Ids, destinations: Ids, count: int) -> tuple[Ids, Ids]:
    """Return each edge once, by source, then destination. There are `count` nodes."""
    pairs = np.unique(sources * count + destinations)
    return pairs // count, pairs % count


def undirected_edges(sources: Ids, destinations: Ids, count: int) -> tuple[Ids, Ids]:
    """Return each edge once in both directions, without those from a node to itself."""
    kept = sources != destinations
    one, other = sources[kept], destinations[kept]
    return distinct_edges(np.concatenate([one, other]), np.concatenate([other, one]), count)
