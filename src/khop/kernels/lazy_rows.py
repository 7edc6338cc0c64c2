"""Tensors whose rows are computed on demand: rows gathered by id, and rows of sparse columns.

Aggregation and linear layers read the table directly, so the gathered rows are never materialized.

A stored row of a sparse column is padded to the longest row: int32 (2, longest), the indices, then the
float32 values as bits. Padding is 0, an entry of value 0. Rows thus have one size, and partitions, caches,
disks, devices and networks treat them like other columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc, index_dtype
from khop.kernels.gather import GatheredColumn, gather_columns
from khop.kernels.segment import DTYPES, check_segment, prefix_and_mean, segment_mean, segment_sum
from khop.kernels.segment_weighted import segment_mixture, segment_weighted_sum

Operation = Callable[..., Any]


class LazyRows(Tensor):
    """Rows (n, ...) that are not materialized. Not differentiable.

    A subclass lists in `_own` the operations that it implements; they may return NotImplemented. Other
    operations, and those that return NotImplemented, compute with `dense` rows.
    """

    _own: ClassVar[Mapping[Operation, Operation]]

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the rows as an ordinary tensor."""

    @classmethod
    def __torch_function__(
        cls,
        function: Operation,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Compute an operation: by the subclass if it implements it, else with dense rows."""
        given = kwargs or {}
        if function in _OF_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **given)
        in_its_way = cls._own.get(function)
        result = NotImplemented if in_its_way is None else in_its_way(*args, **given)
        if result is not NotImplemented:
            return result
        return function(*tree_map(_dense, args), **tree_map(_dense, given))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Operation,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Compute an operation below autograd with dense rows."""
        return function(*tree_map(_dense, args), **tree_map(_dense, kwargs or {}))


def _dense(value: object) -> object:
    return value.dense() if isinstance(value, LazyRows) else value


_OF_SHAPE = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.dim,
    Tensor.size,
    Tensor.numel,
    Tensor.is_floating_point,
}


_TABLE_DIMS = 2  # (rows, width)


class RowsById(LazyRows):
    """Rows (ids, width) of a table, equal to `gather(table, ids)`.

    `segment_sum`, `segment_mean`, `prefix_and_mean`, `segment_weighted_sum` and `segment_mixture` read the
    table; results are bit-identical to those of gathered rows. A slice of the first rows gathers only these.
    Every other operation gathers all rows, once. With `live`, int on the device, rows from `live` on are 0;
    every operation then gathers again, because ids of a static shape change in place.
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
        column, threads = GatheredColumn(self.table), torch.get_num_threads()
        gathered = gather_columns([column], self.ids, threads=threads, live=self.live)[0]
        if self.live is None:
            self._gathered = gathered
        return gathered


def is_readable(column: GatheredColumn, device: torch.device) -> bool:
    """Return True if sums over edges can read the stored column for a batch on a device."""
    table = column.pieces[0]
    is_one = len(column.pieces) == 1 and table.dim() == _TABLE_DIMS
    is_near = table.device == device and not column.is_pinned
    as_stored = table.dtype in DTYPES and not column.as_float32 and column.copies is None
    return is_one and is_near and as_stored and index_dtype(table.shape[0]) == torch.int32


def _of_table(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return `segment_sum` or `segment_mean` as an operation that reads the table of the rows."""

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
    """Apply a function about memory to the ids, the only memory of the rows."""
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


_ROW_DIMS = 3  # of a packed column: rows, indices and values, entries


def packed(indptr: Tensor, indices: Tensor, values: Tensor, longest: int) -> Tensor:
    """Return rows of CSR arrays as int32 (rows, 2, longest); each row has at most `longest` entries."""
    counts = indptr.diff()
    rows = torch.repeat_interleave(counts)
    places = torch.arange(rows.numel()) - indptr[:-1].repeat_interleave(counts)
    column = torch.zeros(counts.numel(), 2, longest, dtype=torch.int32)
    column[rows, 0, places] = indices.to(torch.int32)
    column[rows, 1, places] = values.to(torch.float32).view(torch.int32)
    return column


class SparseRows(LazyRows):
    """Rows (n, width) of a sparse column; only the entries are stored.

    `torch.nn.functional.linear`, and so `torch.nn.Linear`, multiplies only the entries, in the forward pass
    and in the gradient of the weight. Results are bit-identical for any number of threads. Slices of rows and
    conversions to another dtype are sparse too. Every other operation computes with dense rows. The rows
    themselves have no gradient.

    Args:
        indptr: First entry of each row, then the number of entries, int64 (n + 1).
        places: Index of each entry in its row, int32 (entries).
        numbers: Values (entries).
        width: Numbers per row.
        per_row: Entries per row including padding. None (default): rows are not padded.
    Example:
        >>> import scipy.sparse
        >>> column = khop.SparseColumn.of(scipy.sparse.eye_array(3, format="csr"))
        >>> rows = khop.SparseRows.of(column.values, column.width)
        >>> torch.nn.functional.linear(rows, torch.ones(1, 3)).T
        tensor([[1., 1., 1.]])
    """

    indptr: Tensor
    places: Tensor
    numbers: Tensor
    _per_row: int | None  # entries per row including padding; None: rows are not padded

    @staticmethod
    def __new__(
        cls: type[SparseRows],
        indptr: Tensor,
        places: Tensor,
        numbers: Tensor,
        width: int,
        per_row: int | None = None,
    ) -> SparseRows:
        """Make rows from CSR arrays."""
        size = (indptr.numel() - 1, width)
        rows: SparseRows = Tensor._make_wrapper_subclass(
            cls, size, dtype=numbers.dtype, device=numbers.device
        )
        rows.indptr, rows.places, rows.numbers, rows._per_row = indptr, places, numbers, per_row
        return rows

    @classmethod
    def of(cls, column: Tensor, width: int) -> SparseRows:
        """Read rows of a sparse column, as a batch has them.

        Args:
            column: Rows, int32 (n, 2, longest).
            width: Numbers per row: `graph.schema.column(type, name).width`.
        """
        if not hasattr(width, "__index__") or width < 1:  # a Python or NumPy integer
            raise ValueError(f"width {width!r}: must be an integer, at least 1")
        if column.dtype != torch.int32 or column.dim() != _ROW_DIMS or column.shape[1] != 2:
            raise ValueError(
                f"rows are {column.dtype} {tuple(column.shape)}: must be int32 (rows, 2, entries), as a "
                "batch has them of a sparse column"
            )
        if engine(column.device) is not Engine.NATIVE:  # counting entries would wait for the device
            return with_unused_entries(column, width)
        places, bits = column[:, 0], column[:, 1]
        used = bits != 0
        indptr = F.pad(used.sum(1).cumsum(0), (1, 0))
        return cls(indptr, places[used], bits[used].view(torch.float32), width)

    def dense(self) -> Tensor:
        """Return the rows as an ordinary tensor (n, width)."""
        rows = torch.repeat_interleave(self.indptr.diff(), output_size=self.numbers.numel())
        width = self.shape[1]
        out = torch.zeros(
            self.indptr.numel() - 1, width, dtype=self.numbers.dtype, device=self.numbers.device
        )
        return out.index_put_((rows, self.places.long()), self.numbers, accumulate=True)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return `dense() @ weight.T + bias`.

        Args:
            weight: Weight (out, width).
            bias: Bias (out); default None.
        """
        if weight.dim() != 2 or weight.shape[1] != self.shape[1]:
            raise ValueError(f"weight {tuple(weight.shape)}: must be (outputs, {self.shape[1]})")
        kind = weight.device.type
        lowered = torch.is_autocast_enabled(kind) and weight.dtype == torch.float32
        table = (weight.to(torch.get_autocast_dtype(kind)) if lowered else weight).t().contiguous()
        out = segment_weighted_sum(table, self.numbers.to(table.dtype), self.indptr, self.places)
        return out if bias is None else out + bias.to(out.dtype)

    def prefix(self, count: int) -> SparseRows:
        """Return the first rows.

        Args:
            count: Number of rows.
        """
        indptr = self.indptr[: count + 1]
        ends = count * self._per_row if self._per_row is not None else int(indptr[-1])
        return SparseRows(indptr, self.places[:ends], self.numbers[:ends], self.shape[1], self._per_row)

    def converted(self, dtype: torch.dtype) -> SparseRows:
        """Return the rows with values of another dtype.

        Args:
            dtype: The dtype.
        """
        values = self.numbers.to(dtype)
        return SparseRows(self.indptr, self.places, values, self.shape[1], self._per_row)


def with_unused_entries(column: Tensor, width: int) -> SparseRows:
    """Read rows of a sparse column with padding: shapes do not depend on the values."""
    count, _, longest = column.shape
    places, bits = column[:, 0], column[:, 1]
    indptr = torch.arange(count + 1, device=column.device) * longest
    # Padding entries cycle through all indices: a gradient would otherwise add all of them to one row.
    spread = torch.arange(count * longest, dtype=torch.int32, device=column.device) % width
    named = torch.where(bits == 0, spread.view(count, longest), places)
    numbers = bits.contiguous().view(torch.float32)
    return SparseRows(indptr, named.flatten(), numbers.flatten(), width, longest)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:  # noqa: ANN401
    return rows.product(weight, bias) if isinstance(rows, SparseRows) else NotImplemented


def _sliced_rows(rows: SparseRows, key: object) -> Any:  # noqa: ANN401
    if isinstance(key, slice) and key.start in (None, 0) and key.step in (None, 1):
        return rows.prefix(len(range(rows.shape[0])[key]))
    return NotImplemented


def _rows_to(rows: SparseRows, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    if len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs:
        return rows if args[0] == rows.dtype else rows.converted(args[0])
    return NotImplemented


SparseRows._own = {F.linear: _linear, Tensor.__getitem__: _sliced_rows, Tensor.to: _rows_to}
