"""Times of edges, and binary search for time limits in rows sorted by time.

The search uses an outline, a coarse copy of the sorted values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import khop._core as _core
from khop.draw import DrawKey
from khop.kernels.csc import Csc, check_int64, naming_damage
from khop.kernels.memory import pooled
from khop.kernels.philox import WORD, mix64_reference, signed

_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class EdgeTimes:
    """Times of edges: the edge's time, its source's time, or the later of both."""

    edges: Tensor | None  # (edges), whole numbers
    sources: Tensor | None = None  # (source nodes), whole numbers

    def check(self, csc: Csc) -> None:
        """Raise ValueError unless there is a whole-number time for each edge, on the device of the graph."""
        if self.edges is None and self.sources is None:
            raise ValueError("neither edges nor sources have times")
        for name, times, count in (("edges", self.edges, csc.num_edges), ("sources", self.sources, None)):
            if times is None:
                continue
            shape = (times.numel() if count is None else count,)
            if times.dtype not in _DTYPES or times.shape != shape or times.device != csc.indptr.device:
                given = f"times of {name} are {times.dtype} {tuple(times.shape)} on {times.device}"
                raise ValueError(f"{given}: must be whole numbers {shape} on {csc.indptr.device}")

    def of(self, csc: Csc) -> Tensor:
        """Return the times, int64 (edges)."""
        if self.sources is None:
            assert self.edges is not None
            return self.edges.long()
        of_sources = self.sources.long()[csc.indices.long()]
        return of_sources if self.edges is None else torch.maximum(of_sources, self.edges.long())

    def at(self, csc: Csc, edges: Tensor) -> Tensor:
        """Return the times of some edges, int64, by their positions in the graph."""
        own = None if self.edges is None else self.edges[edges].long()
        if self.sources is None:
            assert own is not None
            return own
        of_sources = self.sources[csc.indices[edges].long()].long()
        return of_sources if own is None else torch.maximum(of_sources, own)

    def core(self, csc: Csc) -> _core.OwnTimes:
        """Return the times in the form that the core takes."""
        edges, sources = (
            None if times is None else times.contiguous() for times in (self.edges, self.sources)
        )
        return edges, sources, csc.indices


def whole_numbers(column: Tensor) -> Tensor:
    """Return the column, converted to int64 if kernels cannot read its dtype."""
    return column if column.dtype in _DTYPES else column.long()


@dataclass(frozen=True)
class HopRows:
    """The frontier of one edge type, and the keys of its rows' draws."""

    nodes: Tensor  # int64 (n), rows of the graph, may repeat
    key: DrawKey
    stream: int
    original_ids: Tensor | None = None  # int64 (rows of the graph), the ids that key the draws
    tree: Tensor | None = None  # int64 (n), the position of each disjoint tree's seed
    ranges: Tensor | None = (
        None  # int64 (2 n), begin and end of each row's edges, row after row; None: all edges
    )

    def bounds(self, csc: Csc) -> tuple[Tensor, Tensor]:
        """Return begin and end of each row's edges; ValueError for a node that is not a row."""
        outside = self.nodes[(self.nodes < 0) | (self.nodes >= csc.num_rows)]
        if outside.numel():
            raise ValueError(
                f"frontier node {int(outside[0])}: not in [0, {csc.num_rows}), the rows of the graph"
            )
        if self.ranges is not None:
            return self.ranges[0::2], self.ranges[1::2]
        return csc.indptr[self.nodes], csc.indptr[self.nodes + 1]

    def keys(self) -> Tensor:
        """Return the key of each row as two words, int64 (n, 2)."""
        keys = torch.full_like(self.nodes, signed(self.key.value))
        if self.tree is not None:
            keys = mix64_reference(keys ^ mix64_reference(self.tree))
        return torch.stack([keys & WORD, (keys >> 32) & WORD], dim=1)

    def ids(self) -> Tensor:
        """Return the id in each row's counter: the original id of its node."""
        return self.nodes if self.original_ids is None else self.original_ids[self.nodes]


HEAD = 8  # codes that store the first and the last value of a row
WINDOW = 32  # codes that are compared together
_CODE_BITS = 16


@dataclass(frozen=True, eq=False)
class Rising:
    """Sorted values with an outline, which a search for the first value above a bound mostly reads."""

    values: Tensor  # int64 (edges)
    outline: Tensor  # int16 (outline_size)

    def check(self, name: str, csc: Csc) -> None:
        """Raise ValueError unless shapes, dtypes and devices fit the graph."""
        check_int64(name, self.values, csc.num_edges, csc.indptr.device)
        size = outline_size(csc)
        if self.outline.dtype != torch.int16 or self.outline.shape != (size,):
            given = f"outline of {name} is {self.outline.dtype} {tuple(self.outline.shape)}"
            raise ValueError(f"{given}: must be int16 ({size}); make it by khop.kernels.edge_times.outline")


def outline_size(csc: Csc) -> int:
    """Number of codes in an outline: one per edge, the heads of the rows, padded to whole windows."""
    return _core.outline_size(csc.num_edges, csc.num_rows)


def outline(csc: Csc, values: Tensor, *, threads: int = 1) -> Tensor:
    """Make the outline: for each row its first and last value, in 8 entries, then a code per value, int16.

    A code is the difference between a value and the row's first value. It is the upper 16 of the bits that
    the row's last difference needs, minus 2^15. Unequal codes have the order of their values.
    """
    check_int64("values", values, csc.num_edges, csc.indptr.device)
    if csc.indptr.device.type != "cpu":
        return outline_reference(csc, values)
    made = pooled((outline_size(csc),), torch.int16)
    with naming_damage(csc.home):
        _core.make_outline(csc.indptr, values.contiguous(), made, threads)
    return made


def outline_reference(csc: Csc, values: Tensor) -> Tensor:
    """The same as `outline` in plain torch, on any device."""
    degrees = csc.indptr.diff()
    number = torch.arange(csc.num_rows, device=values.device)
    row = torch.repeat_interleave(number, degrees)
    filled = degrees > 0
    ends = torch.zeros(csc.num_rows, 2, dtype=torch.int64, device=values.device)
    ends[filled, 0] = values[csc.indptr[:-1][filled]]
    ends[filled, 1] = values[csc.indptr[1:][filled] - 1]
    above = values - ends[row, 0]  # modulo 2^64
    codes = (above >> _shifts(ends[:, 1] - ends[:, 0])[row]) & (2**_CODE_BITS - 1)
    made = torch.zeros(outline_size(csc), dtype=torch.int16, device=values.device)
    made[torch.arange(row.numel(), device=values.device) + HEAD * (row + 1)] = (codes - 2**15).to(torch.int16)
    heads = csc.indptr[:-1] + HEAD * number
    made[heads[:, None] + torch.arange(HEAD, device=values.device)] = ends.view(torch.int16)
    return made


def _shifts(spans: Tensor) -> Tensor:
    """Return the number of bits that codes drop, for unsigned 64-bit spans."""
    shifts = torch.where(spans < 0, 64 - _CODE_BITS, 0)
    for bit in range(_CODE_BITS, 63):
        shifts += (spans >> bit) > 0
    return shifts


Int64s = npt.NDArray[np.int64]


def later_positions(
    time_at: Callable[[Int64s], Int64s], begins: Int64s, ends: Int64s, times: Int64s
) -> Int64s:
    """Return the first position of each range with a later time than the given one, or the range's end.

    `time_at` returns the times of positions; they ascend in each range. The number of calls is about log2 of
    the longest range, or 1 if all given times are later than those of their ranges, as in a log.
    """
    low, high = begins.copy(), ends.copy()
    active = np.flatnonzero(low < high)
    is_last = time_at(high[active] - 1) <= times[active]
    low[active[is_last]] = high[active[is_last]]
    active = active[~is_last]
    while len(active):
        middle = (low[active] + high[active]) // 2
        is_later = time_at(middle) > times[active]
        high[active[is_later]] = middle[is_later]
        low[active[~is_later]] = middle[~is_later] + 1
        active = active[low[active] < high[active]]
    return low
