"""Sparse columns, such as bags of words, as `write_graph` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import instance_of, whole_number
from khop.graph.inputs import Given
from khop.kernels.sparse_column import packed

_ENTRY_BYTES, _NUMBER_BYTES = 8, 4  # an index and a value; a float32
_MOST_WIDTH = (1 << 31) - 1  # indices are int32


class CsrMatrix(Protocol):
    """A sparse matrix of SciPy."""

    def tocsr(self) -> Any:  # noqa: ANN401
        """Return the matrix with rows of (index, value)."""
        ...


SparseMatrix = Tensor | CsrMatrix  # torch.sparse_csr, or a sparse matrix of SciPy


@dataclass(frozen=True, eq=False)
class SparseColumn:
    """A column of rows with few entries. `write_graph` takes it, or the matrix itself, in place of an array.

    Rows are stored with room for the longest one. Entries are in ascending order of the index, without
    zeros.
    """

    values: Tensor  # int32 (rows, 2, longest): indices, and float32 values as bits; unused room is 0
    width: int  # numbers of a row

    def __post_init__(self) -> None:
        instance_of("values", self.values, Tensor, "must be a tensor of int32, as SparseColumn.of gives it")
        whole_number("width", self.width, 1, _MOST_WIDTH)
        if self.values.dtype != torch.int32 or self.values.dim() != 3 or self.values.shape[1] != 2:
            raise ValueError(
                f"values are {self.values.dtype} {tuple(self.values.shape)}: must be int32 (rows, 2, entries)"
                ", as SparseColumn.of gives them"
            )

    @classmethod
    def of(cls, matrix: SparseMatrix, most: int | None = None) -> SparseColumn:
        """Make a column of a sparse matrix (rows, width), of SciPy or `torch.sparse_csr`.

        Values are stored as float32; entries at the same place are added up. `most` keeps that number of
        entries of a row, the largest in magnitude, the first among equal ones. ValueError if a row is so long
        that a dense column would take less.
        """
        return _column(matrix, "the sparse column", most)


def sparse_column(matrix: SparseMatrix, name: str) -> SparseColumn:
    """Make a column of a sparse matrix with its name for errors."""
    return _column(matrix, name, None)


def is_sparse(column: object) -> TypeGuard[SparseMatrix]:
    """Return True for a sparse matrix of SciPy or torch."""
    if isinstance(column, Tensor):
        return column.layout == torch.sparse_csr
    return hasattr(column, "tocsr") and len(getattr(column, "shape", ())) == 2


def check_sparse(given: Given, width: int) -> None:
    """Raise ValueError unless each entry of a stored column has an index below `width` and a finite value."""
    if given.dtype != "int32" or given.values.ndim != 3 or given.values.shape[1] != 2:
        raise ValueError(f"{given.name} is {given.dtype} of shape {given.values.shape}: no sparse column")
    reason = f"no index of a row of {width:,} numbers, or no finite value"
    given.refuse(lambda rows: _faults(rows, width), reason)


def _faults(rows: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.bool_]:
    values = np.ascontiguousarray(rows[:, 1]).view(np.float32)
    return np.stack([(rows[:, 0] < 0) | (rows[:, 0] >= width), ~np.isfinite(values)], axis=1)


def _column(matrix: SparseMatrix, name: str, most: int | None) -> SparseColumn:
    if not is_sparse(matrix):
        raise ValueError(
            f"{name} is a {type(matrix).__name__}: give a torch.sparse_csr tensor or a sparse matrix of SciPy"
            ", of two dimensions"
        )
    (count, width), indptr, indices, values = _arrays(matrix)
    if not 1 <= width <= _MOST_WIDTH:
        raise ValueError(f"{name} has rows of {width:,} numbers: must be 1 to {_MOST_WIDTH:,}")
    _check(name, width, indices, values)
    rows = np.repeat(np.arange(count), np.diff(indptr))
    rows, indices, values = _summed(rows, indices, values.astype(np.float64))
    if most is not None:
        kept = _largest(rows, indices, values, whole_number("most", most, 1))
        rows, indices, values = rows[kept], indices[kept], values[kept]
    counts = np.bincount(rows, minlength=count)
    longest = max(1, int(counts.max(initial=0)))
    if longest > 1 and longest * _ENTRY_BYTES > width * _NUMBER_BYTES:
        raise ValueError(
            f"{name}: row {int(counts.argmax())} has {longest:,} entries of {width:,}, and rows are stored "
            "with room for the longest: give a dense array, or the largest entries of each row, "
            "khop.SparseColumn.of(matrix, most=...)"
        )
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return SparseColumn(packed(offsets, torch.from_numpy(indices), torch.from_numpy(values), longest), width)


def _arrays(
    matrix: SparseMatrix,
) -> tuple[tuple[int, int], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return shape, indptr, indices and values."""
    if isinstance(matrix, Tensor):
        given = matrix.detach().cpu()
        values = given.values()
        wide = values.to(torch.float64) if values.dtype == torch.bfloat16 else values
        arrays = (given.crow_indices(), given.col_indices(), wide)
        indptr, indices, numbers = (array.numpy() for array in arrays)
        return (int(given.shape[0]), int(given.shape[1])), indptr, indices, numbers
    csr = matrix.tocsr()
    return (int(csr.shape[0]), int(csr.shape[1])), csr.indptr, csr.indices, csr.data


def _check(name: str, width: int, indices: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    if values.ndim != 1 or values.dtype.kind not in "iufb":
        raise ValueError(f"{name} has values of {values.dtype} {values.shape}: must be one number per entry")
    bad = np.flatnonzero((indices < 0) | (indices >= width))
    if len(bad):
        raise ValueError(f"{name}: entry {bad[0]} has index {indices[bad[0]]}: must be 0 to {width - 1}")
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
    if len(bad):
        raise ValueError(
            f"{name}: entry {bad[0]} is {values[bad[0]]}: not a finite number; replace it, for example by 0"
        )


def _summed(
    rows: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the entries in order of row and index, equal places added up, without zeros."""
    order = np.lexsort((indices, rows))
    rows, indices, values = rows[order], indices[order], values[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(indices, prepend=-1))
    if len(starts) < len(rows):
        rows, indices, values = rows[starts], indices[starts], np.add.reduceat(values, starts)
    kept = values.astype(np.float32) != 0
    return rows[kept], indices[kept], values[kept].astype(np.float32)


def _largest(
    rows: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any], most: int
) -> npt.NDArray[Any]:
    """Return the positions of each row's `most` largest entries, ascending."""
    order = np.lexsort((indices, -np.abs(values), rows))
    counts = np.bincount(rows)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[place < most])
