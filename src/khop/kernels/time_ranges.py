"""Ranges of edges within a time limit, in rows sorted by time."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import DrawKey
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc, check_int64, naming_damage
from khop.kernels.edge_times import EdgeTimes, HopRows, Rising

_INT64 = torch.iinfo(torch.int64)


def time_ranges(
    csc: Csc,
    times: Rising,
    nodes: Tensor,
    until: Tensor,
    window: tuple[int, int] | None = None,
    most: int = -1,
    *,
    own: EdgeTimes | None = None,
    threads: int = 1,
) -> Tensor:
    """Return begin and end of each frontier row's edges with allowed times, int64 (2 n), row by row.

    A row's entry of `until` limits it: to times up to it or, with a window (before, after), to times from
    `until - before` to `until + after`. `most` keeps the last `most` of these edges (-1: all). Both ends of
    every range are checked against the graph's times, `own` (None: the values of `times`), so that damaged
    derived data cannot add an edge beyond the limits. Takes logarithmic time in a row's length, without the
    GIL.
    """
    own = EdgeTimes(times.values) if own is None else own
    times.check("times", csc)
    own.check(csc)
    check_int64("nodes", nodes, nodes.numel(), csc.indptr.device)
    check_int64("until", until, nodes.numel(), csc.indptr.device)
    by = engine(csc.indptr.device)
    if by is Engine.TRITON:
        return _by_triton(csc, own, nodes, until, window, most)
    if by is Engine.TORCH:
        return time_ranges_reference(csc, own.of(csc), nodes, until, window, most)
    before, after = (-1, 0) if window is None else window
    with naming_damage(csc.home):
        return _core.time_ranges(
            csc.indptr,
            times.values,
            times.outline,
            own.core(csc),
            nodes.contiguous(),
            until.contiguous(),
            before,
            after,
            most,
            threads,
        )


def _by_triton(
    csc: Csc, own: EdgeTimes, nodes: Tensor, until: Tensor, window: tuple[int, int] | None, most: int
) -> Tensor:
    from khop.kernels.triton.rows import rows_of
    from khop.kernels.triton.time_ranges import time_ranges as by_triton

    ranges = torch.empty(2 * nodes.numel(), dtype=torch.int64, device=nodes.device)
    rows = rows_of(HopRows(nodes, DrawKey(0), 0))
    edges, sources = (None if times is None else times.contiguous() for times in (own.edges, own.sources))
    by_triton(csc, EdgeTimes(edges, sources), rows, until.contiguous(), ranges, window, most)
    return ranges


def time_ranges_reference(
    csc: Csc, times: Tensor, nodes: Tensor, until: Tensor, window: tuple[int, int] | None, most: int
) -> Tensor:
    """The same as `time_ranges` in plain torch, on any device: a binary search in every row."""
    begin, end = csc.indptr[nodes], csc.indptr[nodes + 1]
    before, after = (None, 0) if window is None else window
    last = first_above(times, begin, end, saturated(until, after))
    first = begin
    if before is not None:
        earliest = saturated(until, -before)
        above = first_above(times, begin, end, (earliest.clamp(min=_INT64.min + 1)) - 1)
        first = torch.minimum(torch.where(earliest == _INT64.min, begin, above), last)
    if most >= 0:
        first = torch.maximum(first, last - most)
    return torch.stack([first, last], dim=1).reshape(-1)


def first_above(values: Tensor, begin: Tensor, end: Tensor, bound: Tensor) -> Tensor:
    """Return the first position above `bound` in each range [begin, end) of nondecreasing values."""
    low, high = begin.clone(), end.clone()
    while bool((low < high).any()):
        middle = (low + high) // 2
        open_ = low < high
        above = values[torch.where(open_, middle, 0)] > bound
        high = torch.where(open_ & above, middle, high)
        low = torch.where(open_ & ~above, middle + 1, low)
    return low


def saturated(times: Tensor, shift: int) -> Tensor:
    """Return `times + shift` for a shift of at most 0, saturated to 64 bits."""
    return torch.where(times < _INT64.min - shift, _INT64.min, times + shift)
