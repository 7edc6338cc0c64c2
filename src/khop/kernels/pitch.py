"""Distance of rows in memory: a multiple of 16 bytes, so that a GPU's threads use their widest loads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOAD_BYTES = 16  # the widest load of a thread


def padded_pitch(width: int, dtype: torch.dtype) -> int:
    """Return the distance of rows of `width` numbers, in numbers.

    A row of at least 16 bytes is padded to a multiple of 16. A shorter row is not padded: labels stay dense.
    """
    per_load = LOAD_BYTES // dtype.itemsize
    return width if width < per_load else -(-width // per_load) * per_load


def empty_rows(rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return uninitialized (rows, *shape) at padded pitch; the last row has its padding too."""
    pitch = padded_pitch(math.prod(shape), dtype)
    memory = torch.empty(rows * pitch, dtype=dtype, device=device).untyped_storage()
    strides = pitch, *(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    # Not a view of the memory: a view cannot be changed in place once gradients flow through it.
    return torch.empty(0, dtype=dtype, device=device).set_(memory, 0, (rows, *shape), strides)


def flat_rows(table: Tensor) -> Tensor:
    """Return a table (rows, ...) of contiguous rows, at any pitch, as (rows, width)."""
    width = math.prod(table.shape[1:])
    pitch = table.stride(0) if table.shape[0] > 1 else width
    return table.as_strided((table.shape[0], width), (pitch, 1))


def accessible_width(rows: Tensor) -> int:
    """Return how many numbers a kernel may access from the start of each row of (rows, width).

    It is the padded pitch if the rows are at that distance and the storage has the padding of the last row,
    else the width.
    """
    count, width = rows.shape
    padded = padded_pitch(width, rows.dtype)
    end = rows.storage_offset() + max(count - 1, 0) * rows.stride(0) + padded
    has_room = rows.stride(0) == padded and end * rows.element_size() <= rows.untyped_storage().nbytes()
    return padded if has_room else width
