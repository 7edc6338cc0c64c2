"""Rows of a sparse column, such as a bag of words: pairs of (index, value), and their product with a weight.

A stored row has room for the entries of the longest row: int32 (2, longest), the indices, then the float32
values as bits. Unused room is 0, an entry of value 0. So rows have one size, and pass through partitions,
caches, disks, devices and wires as all columns do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.choice import Engine, engine
from khop.kernels.lazy_rows import LazyRows
from khop.kernels.segment_weighted import segment_weighted_sum

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
    """Rows (n, width) of a sparse column, of which only the entries are stored.

    `torch.nn.functional.linear`, and so `torch.nn.Linear`, multiplies the entries alone, forward and in the
    gradient of the weight, with the same bits on any number of threads. A slice of rows and another dtype
    are sparse too. Every other operation computes with dense rows. The rows themselves have no gradient.
    """

    indptr: Tensor  # int64 (n + 1)
    places: Tensor  # int32 (entries): the place of each in its row
    numbers: Tensor  # (entries)
    _per_row: int | None  # entries of each row, unused ones included; None: unused ones are left out

    @staticmethod
    def __new__(
        cls: type[SparseRows],
        indptr: Tensor,
        places: Tensor,
        numbers: Tensor,
        width: int,
        per_row: int | None = None,
    ) -> SparseRows:
        """Make rows of CSR arrays."""
        size = (indptr.numel() - 1, width)
        rows: SparseRows = Tensor._make_wrapper_subclass(
            cls, size, dtype=numbers.dtype, device=numbers.device
        )
        rows.indptr, rows.places, rows.numbers, rows._per_row = indptr, places, numbers, per_row
        return rows

    @classmethod
    def of(cls, column: Tensor, width: int) -> SparseRows:
        """Read rows of a sparse column, as a batch has them: int32 (n, 2, longest).

        `width` is `graph.schema.column(type, name).width`.
        """
        if not hasattr(width, "__index__") or width < 1:  # a Python or NumPy integer
            raise ValueError(f"width {width!r}: must be the number of numbers of a row, at least 1")
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
        """Return `dense() @ weight.T + bias`: weight (out, width), bias (out)."""
        if weight.dim() != 2 or weight.shape[1] != self.shape[1]:
            raise ValueError(f"weight {tuple(weight.shape)}: must be (outputs, {self.shape[1]})")
        kind = weight.device.type
        lowered = torch.is_autocast_enabled(kind) and weight.dtype == torch.float32
        table = (weight.to(torch.get_autocast_dtype(kind)) if lowered else weight).t().contiguous()
        out = segment_weighted_sum(table, self.numbers.to(table.dtype), self.indptr, self.places)
        return out if bias is None else out + bias.to(out.dtype)

    def prefix(self, count: int) -> SparseRows:
        """Return the first `count` rows."""
        indptr = self.indptr[: count + 1]
        ends = count * self._per_row if self._per_row is not None else int(indptr[-1])
        return SparseRows(indptr, self.places[:ends], self.numbers[:ends], self.shape[1], self._per_row)

    def converted(self, dtype: torch.dtype) -> SparseRows:
        """Return the rows with values of another dtype."""
        values = self.numbers.to(dtype)
        return SparseRows(self.indptr, self.places, values, self.shape[1], self._per_row)


def with_unused_entries(column: Tensor, width: int) -> SparseRows:
    """Read rows of a sparse column with all room for entries: shapes do not depend on the numbers."""
    count, _, longest = column.shape
    places, bits = column[:, 0], column[:, 1]
    indptr = torch.arange(count + 1, device=column.device) * longest
    # Unused entries name all places in turn: a gradient would otherwise add them all to one row.
    spread = torch.arange(count * longest, dtype=torch.int32, device=column.device) % width
    named = torch.where(bits == 0, spread.view(count, longest), places)
    numbers = bits.contiguous().view(torch.float32)
    return SparseRows(indptr, named.flatten(), numbers.flatten(), width, longest)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:  # noqa: ANN401
    return rows.product(weight, bias) if isinstance(rows, SparseRows) else NotImplemented


def _sliced(rows: SparseRows, key: object) -> Any:  # noqa: ANN401
    if isinstance(key, slice) and key.start in (None, 0) and key.step in (None, 1):
        return rows.prefix(len(range(rows.shape[0])[key]))
    return NotImplemented


def _to(rows: SparseRows, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    if len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs:
        return rows if args[0] == rows.dtype else rows.converted(args[0])
    return NotImplemented


SparseRows._own = {F.linear: _linear, Tensor.__getitem__: _sliced, Tensor.to: _to}
