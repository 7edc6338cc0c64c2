"""Rows of a table by id that are gathered where an operation needs them: sums over edges read the table.

A first layer that aggregates them in this way neither writes nor reads a copy of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from khop.kernels.build_csc import index_dtype
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.gather import Column, gather_columns
from khop.kernels.lazy_rows import LazyRows
from khop.kernels.segment import (
    DTYPES,
    check_segment,
    prefix_and_mean,
    segment_mean,
    segment_sum,
)
from khop.kernels.segment_mixture import segment_mixture
from khop.kernels.segment_weighted import segment_weighted_sum

_TABLE_DIMS = 2  # (rows, width)


class RowsById(LazyRows):
    """Rows (ids, width) of a table, equal to `gather(table, ids)`.

    `segment_sum`, `segment_mean`, `prefix_and_mean`, `segment_weighted_sum` and `segment_mixture` read the
    table, with the bits of gathered rows. A slice of the first rows gathers these alone. Every other
    operation gathers all rows, once. With `live`, int on the device, rows behind it are 0; every operation
    then gathers again, because ids of a static shape change in place.
    """

    table: Tensor  # (N, width)
    ids: Tensor  # int64 (n)
    live: Tensor | None  # int32 or int64 (1)
    _gathered: Tensor | None

    @staticmethod
    def __new__(cls: type[RowsById], table: Tensor, ids: Tensor, live: Tensor | None = None) -> RowsById:
        """Make rows of a table on the device of the ids."""
        size = (ids.numel(), table.shape[1])
        rows: RowsById = Tensor._make_wrapper_subclass(cls, size, dtype=table.dtype, device=ids.device)
        rows.table, rows.ids, rows.live, rows._gathered = table, ids, live, None
        return rows

    def dense(self) -> Tensor:
        """Gather the rows."""
        if self._gathered is not None:
            return self._gathered
        column, threads = Column(self.table), torch.get_num_threads()
        gathered = gather_columns([column], self.ids, threads=threads, live=self.live)[0]
        if self.live is None:
            self._gathered = gathered
        return gathered


def is_readable(column: Column, device: torch.device) -> bool:
    """Return True if sums over edges can read a column for a batch on a device, as it is stored."""
    table = column.pieces[0]
    is_one = len(column.pieces) == 1 and table.dim() == _TABLE_DIMS
    is_near = table.device == device and not column.is_pinned
    as_stored = table.dtype in DTYPES and not column.as_float32 and column.copies is None
    return is_one and is_near and as_stored and index_dtype(table.shape[0]) == torch.int32


def _of_table(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return `segment_sum` or `segment_mean` of rows as an operation that reads their table."""

    def aggregated(rows: RowsById, indptr: Tensor, indices: Tensor) -> Any:  # noqa: ANN401
        check_segment(rows, indptr, indices)
        by = engine(rows.device)
        if by is Engine.NATIVE:
            return operation(rows.table, indptr, _composed(rows, indices))
        if by is Engine.TRITON:
            by_triton = getattr(import_module("khop.kernels.triton.segment"), operation.__name__)
            return by_triton(rows.table, Csc(indptr, indices.int()), rows.ids)
        return NotImplemented

    return aggregated


def _prefix_and_mean(rows: RowsById, indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    return rows[: indptr.numel() - 1], segment_mean(rows, indptr, indices)


def _weighted_sum(x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Any:  # noqa: ANN401
    by = engine(x.device)
    if not isinstance(x, RowsById) or weights.requires_grad:
        return NotImplemented
    if by is Engine.NATIVE:
        return segment_weighted_sum(x.table, weights, indptr, _composed(x, indices))
    if by is Engine.TRITON:
        from khop.kernels.triton.segment_weighted import segment_weighted_sum as by_triton

        return by_triton(x.table, weights, Csc(indptr, indices.int()), x.ids)
    return NotImplemented


def _mixture(rows: RowsById, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    return segment_mixture(rows.table, weights, indptr, _composed(rows, indices))


def _composed(rows: RowsById, indices: Tensor) -> Tensor:
    """Return the table's row of each edge, int32."""
    return rows.ids.index_select(0, indices).int()


def _sliced(rows: RowsById, key: object) -> Any:  # noqa: ANN401
    if rows._gathered is None and isinstance(key, slice) and key.start in (None, 0) and key.step in (None, 1):
        return RowsById(rows.table, rows.ids[key], rows.live).dense()
    return NotImplemented


def _reshaped(rows: RowsById, *shape: Any) -> Any:  # noqa: ANN401
    wanted = shape if isinstance(shape[0], int) else tuple(shape[0])
    return rows if wanted in ((-1, rows.shape[1]), tuple(rows.shape)) else NotImplemented


def _to(rows: RowsById, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    as_asked = torch.empty(0, dtype=rows.dtype, device=rows.device).to(*args, **kwargs)
    is_same = (as_asked.dtype, as_asked.device) == (rows.dtype, rows.device)
    return rows if is_same else NotImplemented


def _of_ids(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the memory that the rows hold: their ids."""
    return lambda rows, *args: function(rows.ids, *args)


RowsById._own = {
    segment_sum: _of_table(segment_sum),
    segment_mean: _of_table(segment_mean),
    prefix_and_mean: _prefix_and_mean,
    segment_weighted_sum: _weighted_sum,
    segment_mixture: _mixture,
    Tensor.__getitem__: _sliced,
    Tensor.reshape: _reshaped,
    Tensor.to: _to,
    **{
        function: _of_ids(function)
        for function in (Tensor.nbytes.__get__, Tensor.untyped_storage, Tensor.record_stream)  # type: ignore[attr-defined]
    },
}
