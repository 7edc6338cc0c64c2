"""Rows of a table with others put between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import khop._core as _core

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


def insert_rows(table: Array, at: Int64s, added: Array) -> Array:
    """Return the rows of a table with row i of `added` before row `at[i]`; `at` ascends.

    Added rows with the same place keep their order. As `numpy.insert` does, at the speed of a copy.
    ValueError for places that descend, or lie outside the table.
    """
    if table.dtype != added.dtype or table.shape[1:] != added.shape[1:]:
        raise ValueError(
            f"rows of {added.dtype} {added.shape[1:]} put into a table of {table.dtype} {table.shape[1:]}"
        )
    out = np.empty((len(table) + len(added), *table.shape[1:]), table.dtype)
    row_bytes = int(np.prod(table.shape[1:], dtype=np.int64)) * table.itemsize
    if row_bytes:
        _core.insert_rows(
            _as_bytes(table), row_bytes, np.ascontiguousarray(at), _as_bytes(added), _as_bytes(out)
        )
    return out


def insert_rows_reference(table: Array, at: Int64s, added: Array) -> Array:
    """The same as `insert_rows` in NumPy alone."""
    inserted: Array = np.insert(table, at, added, axis=0)
    return inserted


def _as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
