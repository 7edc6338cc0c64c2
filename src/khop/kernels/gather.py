"""Rows of a table by id."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.checks import check_ids
from khop.kernels.memory import pooled


def gather(table: Tensor, ids: Tensor, *, out: Tensor | None = None, threads: int = 1) -> Tensor:
    """`table[ids]`: the rows of `table` (N, ...) at int64 `ids`, in their order, duplicates included.

    Any dtype; the table lies in memory or in a mapped file. `out` takes the rows instead of new memory and is
    returned; it must not overlap the table. The ids' own memory is only read, and no gradient flows.
    """
    _check(table, ids, out)
    check_ids(ids, table.shape[0], "row", threads)
    if table.device.type != "cpu":
        return gather_reference(table, ids, out=out)
    if out is None:
        out = pooled((ids.numel(), *table.shape[1:]), table.dtype)
    row_bytes = table[:1].nbytes if table.shape[0] else 0
    _core.gather(_as_bytes(table), row_bytes, ids.contiguous(), _as_bytes(out), threads)
    return out


def gather_reference(table: Tensor, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The same in plain torch, on any device; ids are in range."""
    rows = table.detach().index_select(0, ids)
    return rows if out is None else out.copy_(rows)


def _check(table: Tensor, ids: Tensor, out: Tensor | None) -> None:
    if table.dim() == 0 or not table.is_contiguous():
        raise ValueError(
            f"table {tuple(table.shape)} with strides {table.stride()}: rows must lie one after another; "
            "pass table.contiguous()"
        )
    if ids.dtype != torch.int64:
        raise ValueError(f"ids are {ids.dtype}: must be int64; pass ids.long()")
    if ids.device != table.device:
        raise ValueError(f"ids are on {ids.device}, the table is on {table.device}: move one of them")
    if out is None:
        return
    given = (out.shape, out.dtype, out.device, out.is_contiguous())
    wanted = ((ids.numel(), *table.shape[1:]), table.dtype, table.device, True)
    if given != wanted:
        raise ValueError(f"out has (shape, dtype, device, contiguous) {given}: must have {wanted}")


def _as_bytes(tensor: Tensor) -> Tensor:
    # The core copies rows as bytes; DLPack has no name for every dtype that torch has.
    return tensor.detach().view(-1).view(torch.uint8)
