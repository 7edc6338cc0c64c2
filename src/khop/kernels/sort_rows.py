"""The edges of each row sorted by time, as a temporal rule needs them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.checks import check_int64
from khop.kernels.csc import Csc, naming_damage
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.memory import pooled


def sort_rows(csc: Csc, times: Tensor, *, threads: int = 1) -> tuple[Csc, Tensor]:
    """Sort every row by `times` (int64, one per edge); equal times keep their order.

    The second value is an int64 permutation, new position -> old position.
    """
    check_int64("times", times, csc.num_edges, csc.indptr.device)
    if csc.indptr.device.type == "cpu":
        order = pooled((csc.num_edges,), torch.int64)
        with naming_damage(csc.home):
            _core.sort_rows(csc.indptr, times.contiguous(), order, threads)
    else:
        order = sort_rows_reference(csc, times)
    return replace(csc, indices=csc.indices[order], home=""), order


def sort_rows_reference(csc: Csc, times: Tensor) -> Tensor:
    """Return the permutation of `sort_rows` in plain torch, on any device."""
    by_time = torch.argsort(times, stable=True)
    return by_time[torch.argsort(csc.destinations()[by_time], stable=True)]


def first_unsorted(csc: Csc, times: Tensor | EdgeTimes, *, threads: int = 1) -> int:
    """Return the first position with a time earlier than the one before it in its row, or -1."""
    if isinstance(times, Tensor):
        check_int64("times", times, csc.num_edges, csc.indptr.device)
        times = EdgeTimes(times)
    times.check(csc)
    if csc.indptr.device.type == "cpu":
        with naming_damage(csc.home):
            return _core.first_unsorted(csc.indptr, times.core(csc), threads)
    return first_unsorted_reference(csc, times.of(csc))


def first_unsorted_reference(csc: Csc, times: Tensor) -> int:
    """The same as `first_unsorted` in plain torch, on any device."""
    falls = (times[1:] < times[:-1]) & (csc.destinations().diff() == 0)
    positions = falls.nonzero()
    return int(positions[0, 0]) + 1 if positions.numel() else -1
