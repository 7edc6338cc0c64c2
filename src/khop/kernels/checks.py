"""Checks of ids and offsets before a kernel reads memory by them."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core

INDEX_DTYPES = (torch.int32, torch.int64)


def check_ids(ids: Tensor, limit: int, what: str, threads: int = 1) -> None:
    """Raise ValueError that names the first id outside [0, limit) and its position, if there is one."""
    if ids.dim() != 1 or ids.dtype not in INDEX_DTYPES:
        raise ValueError(f"{what} ids are {ids.dtype} {tuple(ids.shape)}: must be int32 or int64 (n)")
    position = first_outside(ids, limit, threads)
    if position >= 0:
        raise outside_error(what, ids, position, limit)


def check_int64(name: str, values: Tensor, count: int, device: torch.device) -> None:
    """Raise ValueError unless `values` are int64 (count), on the device."""
    if values.dtype != torch.int64 or values.shape != (count,) or values.device != device:
        raise not_int64(name, values, count, device)


def not_int64(name: str, values: Tensor, count: int, device: torch.device) -> ValueError:
    """Return the error for values that are not int64 (count), or not on the device."""
    given = f"{name} is {values.dtype} {tuple(values.shape)} on {values.device}"
    return ValueError(f"{given}: must be int64 ({count}) on {device}")


def first_outside(ids: Tensor, limit: int, threads: int = 1) -> int:
    """Return the first position of an id (int32 or int64) outside [0, limit), or -1."""
    if ids.device.type == "cpu":
        return _core.first_outside(ids.contiguous(), limit, threads)
    return first_outside_reference(ids, limit)


def outside_error(what: str, ids: Tensor, position: int, limit: int) -> ValueError:
    """Return the error for an id at `position` outside [0, limit)."""
    return ValueError(f"{what} id {int(ids[position])} at position {position}: must be in [0, {limit})")


def check_segments(indptr: Tensor, indices: Tensor, num_sources: int, threads: int = 1) -> None:
    """Raise ValueError unless `indptr` splits all of `indices` into rows and every index is a source row."""
    if indptr.device != indices.device:
        raise ValueError(f"indptr is on {indptr.device}, indices on {indices.device}: move one of them")
    check_offsets(indptr, indices.numel())
    check_ids(indices, num_sources, "source", threads)


def check_offsets(indptr: Tensor, edges: int) -> None:
    """Raise ValueError unless `indptr` begins with 0, never falls and ends with `edges`."""
    if indptr.dim() != 1 or indptr.numel() == 0 or indptr.dtype != torch.int64:
        raise ValueError(f"indptr is {indptr.dtype} {tuple(indptr.shape)}: must be int64 (rows + 1)")
    if indptr.device.type == "cpu":
        position = _core.first_wrong_offset(indptr.contiguous(), edges)
    else:
        position = first_wrong_offset_reference(indptr, edges)
    if position >= 0:
        raise ValueError(
            f"indptr has {int(indptr[position])} at position {position}: "
            f"it must begin with 0, never fall and end with the number of edges, {edges}"
        )


def first_outside_reference(ids: Tensor, limit: int) -> int:
    """Return the first position of an id outside [0, limit), or -1."""
    return _first_true((ids < 0) | (ids >= limit))


def first_wrong_offset_reference(indptr: Tensor, edges: int) -> int:
    """Return the first position of `indptr` that is inconsistent with `edges` edges, or -1."""
    wrong = torch.zeros_like(indptr, dtype=torch.bool)
    wrong[1:] = indptr.diff() < 0
    wrong[0] |= indptr[0] != 0
    wrong[-1] |= indptr[-1] != edges
    return _first_true(wrong)


def _first_true(flags: Tensor) -> int:
    positions = flags.nonzero()
    return int(positions[0, 0]) if positions.numel() else -1
