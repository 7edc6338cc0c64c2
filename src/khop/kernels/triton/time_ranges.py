"""Ranges of edges within a time limit on the device, bitwise equal to the CPU's."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.gather import kernel_operands
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import DeviceRows, entry_at, row_edges

_ROWS = 128  # per program
_UNSPECIALIZED = ["before", "after", "most", "num_rows", "capacity"]
_LEAST = tl.constexpr(-(1 << 63))


@triton.jit
def edge_time(
    edge_times: tl.tensor,
    time_layout: tl.tensor,
    source_times: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    edge: tl.tensor,
    live: tl.tensor,
) -> tl.tensor:
    """Return each edge's time, int64: the edge's, its source's, or the later of both."""
    if source_times is None:
        time = tl.load(entry_at(edge_times, time_layout, edge, live), mask=live, other=0).to(tl.int64)
    else:
        source = tl.load(entry_at(indices, index_layout, edge, live), mask=live, other=0)
        time = tl.load(source_times + source, mask=live, other=0).to(tl.int64)
        if edge_times is not None:
            own = tl.load(entry_at(edge_times, time_layout, edge, live), mask=live, other=0)
            time = tl.maximum(time, own.to(tl.int64))
    return time


@triton.jit
def first_later(
    edge_times: tl.tensor,
    time_layout: tl.tensor,
    source_times: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    limit: tl.tensor,
) -> tl.tensor:
    """Return the first edge of each range [begin, end) with a time after the limit."""
    low, high = begin, end
    while tl.max((low < high).to(tl.int32), 0) > 0:
        is_open = low < high
        middle = (low + high) >> 1
        time = edge_time(edge_times, time_layout, source_times, indices, index_layout, middle, is_open)
        is_later = time > limit
        high = tl.where(is_open & is_later, middle, high)
        low = tl.where(is_open & (is_later == 0), middle + 1, low)
    return low


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def allowed_ranges(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    edge_times: tl.tensor,
    time_layout: tl.tensor,
    source_times: tl.tensor,
    nodes: tl.tensor,
    count: tl.tensor,
    until: tl.tensor,
    ranges: tl.tensor,
    before: tl.tensor,
    after: tl.tensor,
    most: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Search both ends of each row's range. `after` is at most 0; sums stay within 64 bits."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < capacity
    live, _, begin, end = row_edges(indptr, nodes, None, count, num_rows, rows)
    limit = tl.load(until + rows, mask=live, other=0)
    least = tl.full([BLOCK], _LEAST, tl.int64)
    shift = tl.full([], 0, tl.int64) + after
    latest = tl.where(limit < least - shift, least, limit + shift)
    last = first_later(edge_times, time_layout, source_times, indices, index_layout, begin, end, latest)
    first = begin
    if WINDOW:
        shift = tl.full([], 0, tl.int64) - before
        earliest = tl.where(limit < least - shift, least, limit + shift)
        bound = tl.where(earliest == least, least, earliest - 1)
        above = first_later(edge_times, time_layout, source_times, indices, index_layout, begin, end, bound)
        first = tl.minimum(tl.where(earliest == least, begin, above), last)
    if most >= 0:
        first = tl.maximum(first, last - most)
    tl.store(ranges + 2 * rows, first, mask=inside)
    tl.store(ranges + 2 * rows + 1, last, mask=inside)


def time_ranges(
    csc: Csc,
    times: EdgeTimes,
    rows: DeviceRows,
    until: Tensor,
    ranges: Tensor,
    window: tuple[int, int] | None = None,
    most: int = -1,
) -> None:
    """Write begin and end of each row's edges with allowed times into `ranges`, int64 (2 capacity).

    `until`, int64 (capacity), `window` and `most` are as in `khop.kernels.draw_request.time_ranges`. The
    search reads the graph's times. Rows that are not in use get an empty range. Does not synchronize with the
    device.
    """
    before, after = (0, 0) if window is None else window
    launch(
        *(allowed_ranges, triton.cdiv(rows.capacity, _ROWS), rows.nodes),
        *(csc.indptr, *kernel_operands(csc.indices), *kernel_operands(times.edges), times.sources),
        *(rows.nodes, rows.count, until, ranges),
        *(before, after, most, csc.num_rows, rows.capacity),
        WINDOW=window is not None,
        BLOCK=_ROWS,
    )


_TYPES = {
    **dict.fromkeys(("indptr", "index_layout", "edge_times", "time_layout", "source_times"), "*i64"),
    **dict.fromkeys(("nodes", "until", "ranges"), "*i64"),
    **dict.fromkeys(("indices", "count"), "*i32"),
    **dict.fromkeys(_UNSPECIALIZED, "i32"),
}
_WHOLE = dict.fromkeys(("index_layout", "time_layout"))
_EDGES_ONLY, _SOURCES_ONLY = {**_WHOLE, "source_times": None}, {**_WHOLE, "edge_times": None}
VARIANTS = (
    Variant("times of edges", allowed_ranges, _TYPES, {**_EDGES_ONLY, "WINDOW": False, "BLOCK": _ROWS}),
    Variant("window of sources", allowed_ranges, _TYPES, {**_SOURCES_ONLY, "WINDOW": True, "BLOCK": _ROWS}),
    Variant(
        "window of both, 64 bits",
        allowed_ranges,
        {**_TYPES, "before": "i64", "after": "i64", "source_times": "*u8"},
        {"WINDOW": True, "BLOCK": _ROWS},
    ),
)
