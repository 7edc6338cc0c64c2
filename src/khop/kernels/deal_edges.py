"""Edges dealt to ranges of consecutive destinations: the first step of a sort larger than memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import khop._core as _core

Order = npt.NDArray[np.uint32]
MOST_EDGES = 1 << 32  # positions are 32-bit


def deal_edges(
    destinations: npt.NDArray[Any], first: int, shift: int, ranges: int
) -> tuple[npt.NDArray[np.int64], Order]:
    """Return the offsets of each range (ranges + 1), and the positions of its edges in input order.

    Range r holds the destinations first + [r * 2^shift, (r + 1) * 2^shift). ValueError for a destination
    outside.
    """
    if len(destinations) > MOST_EDGES:
        raise ValueError(f"{len(destinations):,} edges: at most {MOST_EDGES:,} are dealt at once")
    begin, order = np.empty(ranges + 1, np.int64), np.empty(len(destinations), np.uint32)
    outside = _core.deal_edges(np.ascontiguousarray(destinations), first, shift, begin, order)
    if outside >= 0:
        last = first + (ranges << shift)
        raise ValueError(
            f"destination {destinations[outside]} at position {outside}: must be in [{first}, {last})"
        )
    return begin, order


def take_rows(table: npt.NDArray[Any], order: Order) -> npt.NDArray[Any]:
    """Return table[order]; NumPy's own is slower for 32-bit positions."""
    table = np.ascontiguousarray(table)
    out = np.empty((len(order), *table.shape[1:]), table.dtype)
    row_bytes = out.nbytes // len(order) if len(order) else 0
    if row_bytes:
        _core.take_rows(_as_bytes(table), row_bytes, order, _as_bytes(out))
    return out


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
