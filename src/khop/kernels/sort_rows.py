"""The edges of each row by time: what a temporal rule needs of a graph."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.csc import Csc
from khop.kernels.hop_rows import check_int64
from khop.kernels.memory import pooled


def sort_rows(csc: Csc, times: Tensor, *, threads: int = 1) -> tuple[Csc, Tensor]:
    """The graph with every row in the order of `times` (int64, one per edge), equal times in their order.

    The second value is an int64 permutation, new position -> position before.
    """
    check_int64("times", times, csc, csc.num_edges)
    if csc.indptr.device.type == "cpu":
        order = pooled((csc.num_edges,), torch.int64)
        _core.sort_rows(csc.indptr, times.contiguous(), order, threads)
    else:
        order = sort_rows_reference(csc, times)
    return Csc(csc.indptr, csc.indices[order]), order


def sort_rows_reference(csc: Csc, times: Tensor) -> Tensor:
    """The permutation in plain torch, on any device."""
    by_time = torch.argsort(times, stable=True)
    return by_time[torch.argsort(_rows(csc)[by_time], stable=True)]


def first_unsorted(csc: Csc, times: Tensor, *, threads: int = 1) -> int:
    """The first position whose time is earlier than the one before it in its row, or -1."""
    check_int64("times", times, csc, csc.num_edges)
    if csc.indptr.device.type == "cpu":
        return _core.first_unsorted(csc.indptr, times.contiguous(), threads)
    return first_unsorted_reference(csc, times)


def first_unsorted_reference(csc: Csc, times: Tensor) -> int:
    """The same in plain torch, on any device."""
    falls = (times[1:] < times[:-1]) & (_rows(csc).diff() == 0)
    positions = falls.nonzero()
    return int(positions[0, 0]) + 1 if positions.numel() else -1


def _rows(csc: Csc) -> Tensor:
    rows = torch.arange(csc.num_rows, device=csc.indptr.device)
    # Its size is known: to ask the device for it would wait for all that the device has to do.
    return torch.repeat_interleave(rows, csc.indptr.diff(), output_size=csc.num_edges)
