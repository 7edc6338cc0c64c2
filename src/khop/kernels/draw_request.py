"""A draw of in-edges of one edge type, as a rule requests it, and the edges within its time limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import DrawKey, Neighbors
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc, check_int64, naming_damage
from khop.kernels.edge_times import EdgeTimes, HopRows, Rising
from khop.kernels.philox import SourceNumbers

_INT64 = torch.iinfo(torch.int64)


class Kernel(StrEnum):
    """Operation of `sample_hop` that executes a draw."""

    UNIFORM = auto()
    WEIGHTED = auto()  # reads `DrawRequest.sums`
    SMALLEST = auto()  # reads `DrawRequest.order`


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


@dataclass(frozen=True, eq=False)
class RowLimits:
    """Time limits of the rows of a draw, in a graph whose rows are sorted by time."""

    times: Rising  # of the edges
    own: EdgeTimes | None  # the same times as the graph stores them; None: the values of `times`
    until: Tensor  # int64 (n), no edge of a row is later than this
    window: tuple[int, int] | None  # (before, after) the limit; None: all edges up to it
    is_latest: bool  # True: take the last `fanout` allowed edges instead of drawing

    def allowed(self, csc: Csc, nodes: Tensor, fanout: int, threads: int = 1) -> tuple[Tensor, int]:
        """Return ranges of each row's allowed edges, see `time_ranges`, and the number of edges to draw."""
        most, left = (fanout, -1) if self.is_latest else (-1, fanout)
        ranges = time_ranges(
            csc, self.times, nodes, self.until, self.window, most, own=self.own, threads=threads
        )
        return ranges, left


@dataclass(frozen=True, eq=False)
class DrawRequest:
    """The draw of one edge type for the rows of a frontier; `sample_hop` executes it."""

    csc: Csc
    rows: HopRows
    fanout: int  # edges per row; -1: all
    reference: Callable[[DrawRequest], Neighbors]  # the draw in torch, on any device
    kernel: Kernel | None = None  # the same draw; None: there is only the reference
    replacement: bool = False
    sums: Rising | None = None  # running sums of weights, from `weight_sums`
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # edge columns, (edges, ...)
    source_ids: Tensor | None = None  # (edges), the original id of each edge's source; see `order`
    limits: RowLimits | None = None  # instead of `rows.ranges`: times that limit each row
    # Sort keys of edges, of which a row returns the smallest: by source, with int64 `source_ids` unless
    # sources are original ids; or int64 (edges).
    order: SourceNumbers | Tensor | None = None
    has_parallel: Tensor | None = None  # uint8 (rows), 1 where edges share a source; None: nowhere
    weigh: Callable[[DrawRequest, Neighbors], Tensor] | None = None  # (edges), weights of drawn neighbors
    times: EdgeTimes | Tensor | None = (
        None  # drawn neighbors get these times of edges, or int64 (rows) of rows
    )

    def resolved(self) -> DrawRequest:
        """Return the same draw without time limits, from the ranges of edges that they allow."""
        if self.limits is None:
            return self
        rows = self.rows
        ranges, fanout = self.limits.allowed(self.csc, rows.nodes, self.fanout)
        limited = HopRows(rows.nodes, rows.key, rows.stream, rows.original_ids, rows.tree, ranges)
        return replace(self, rows=limited, fanout=fanout, limits=None)

    def neighbors(self, counts: Tensor, edges: Tensor, weights: Tensor | None = None) -> Neighbors:
        """Return drawn neighbors from the number of edges of each row, and all edges, row by row.

        `counts` are int64 (rows), `edges` int64 positions in `csc`, `weights` float32 (edges).
        """
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Neighbors(offsets, self.csc.indices[edges], edges, weights)

    def weighed(self, drawn: Neighbors) -> Neighbors:
        """Return drawn neighbors, with the weights of `weigh` if it is given."""
        return drawn if self.weigh is None else replace(drawn, weights=self.weigh(self, drawn).float())

    def dated(self, drawn: Neighbors) -> Neighbors:
        """Return drawn neighbors, which have edges, with times if `times` is given."""
        if self.times is None:
            return drawn
        if isinstance(self.times, Tensor):
            return replace(drawn, times=drawn.by_row(self.times))
        assert drawn.edges is not None  # `sample_hop` draws them
        return replace(drawn, times=self.times.at(self.csc, drawn.edges))

    def check_drawn(self, drawn: Neighbors) -> None:
        """Raise ValueError unless drawn neighbors are edges of the request's rows."""
        rows, edges = self.rows.nodes.numel(), drawn.edges
        if edges is None:
            raise ValueError(f"{self.reference}: returned no edges; make Neighbors by request.neighbors(...)")
        begin, end = self.rows.bounds(self.csc)
        degrees = drawn.offsets.diff()
        if degrees.numel() != rows or bool((degrees < 0).any()) or int(degrees.sum()) != edges.numel():
            raise ValueError(f"{self.reference}: offsets do not split {edges.numel()} edges into {rows} rows")
        row = torch.repeat_interleave(torch.arange(rows, device=edges.device), degrees)
        if bool(((edges < begin[row]) | (edges >= end[row])).any()):
            raise ValueError(
                f"{self.reference}: returned an edge of another row; draw from request.rows.bounds(csc)"
            )
        if not torch.equal(drawn.nodes, self.csc.indices[edges]):
            raise ValueError(f"{self.reference}: nodes are not the sources of the edges")
        if drawn.weights is not None and (
            drawn.weights.dtype != torch.float32 or drawn.weights.shape != edges.shape
        ):
            given = f"{drawn.weights.dtype} {tuple(drawn.weights.shape)}"
            raise ValueError(f"{self.reference}: weights are {given}: must be float32 ({edges.numel()})")
