"""In-edges with the smallest keys of each row on the device, bitwise equal to `sample_hop`.

`Labor` and `TopK` draw in this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.draw import mix64
from khop.kernels.csc import Csc
from khop.kernels.gather import Shards, kernel_operands
from khop.kernels.philox import SourceNumbers, signed
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import (
    DeviceRows,
    Marks,
    Slots,
    entry_at,
    mark,
    row_edges,
    stamped,
    store_slots,
)
from khop.kernels.triton.words import mix64 as mixed

LONG_ROW = 4096  # edges; longer rows are processed by a second launch with more threads per row
_ENTRIES, _WARPS = 128, 1  # entries of a row at once
_LONG_ENTRIES, _LONG_WARPS = 1024, 8
_UNSPECIALIZED = ["mixed_stream", "period", "base", "num_rows", "per_row", "above", "up_to"]


@dataclass(frozen=True)
class SourceOrder:
    """Edges in the order of the random numbers of their sources: see `SourceNumbers`."""

    stream: int
    source_ids: Tensor | Shards | None = None  # int64 (edges), original ids; None: sources are original ids
    numbers: SourceNumbers | None = None  # None: from the batch's key on the device


@dataclass(frozen=True)
class EdgeOrder:
    """Edges in the order of given keys."""

    keys: Tensor | Shards  # int64 (edges)


@triton.jit
def _keys(
    keyed: tl.tensor,
    keyed_layout: tl.tensor,
    numbers: tl.tensor,
    first: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    number: tl.tensor,
    period: tl.tensor,
    BY_EDGE: tl.constexpr,
) -> tl.tensor:
    """Return the keys of entries `at` of a row, uint64, and the ids that break ties, int64.

    `keyed` has the keys of edges, or the ids of their sources.
    """
    given = tl.load(entry_at(keyed, keyed_layout, first + at, inside), mask=inside, other=0).to(tl.int64)
    if BY_EDGE:
        id = at.to(tl.int64)
        key = given.to(tl.uint64, bitcast=True) ^ tl.full([], 0x8000000000000000, tl.uint64)
    else:
        id = given
        word = id.to(tl.uint64, bitcast=True)
        of_id = number + word * 0
        if numbers is not None:
            offset = ((mixed(word) >> 32) * period.to(tl.uint64)) >> 32
            later = tl.load(numbers + 1).to(tl.uint64, bitcast=True)
            later_from = tl.load(numbers + 2).to(tl.uint64, bitcast=True)
            of_id = tl.where(offset >= later_from, later, of_id)
        key = mixed(of_id ^ word)
    return key, id


@triton.jit
def _last_pick(
    keyed: tl.tensor,
    keyed_layout: tl.tensor,
    numbers: tl.tensor,
    first: tl.tensor,
    degree: tl.tensor,
    number: tl.tensor,
    period: tl.tensor,
    per_row: tl.tensor,
    BY_EDGE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the key of a row's last pick, the number of picks with this key, and the last pick's id.

    The key is found by digits of 8 bits: a pass counts, by their next digit, the keys that begin with the
    digits found so far. If all such keys are picks, the search ends, and the remaining digits are the highest
    ones. A row with at most `per_row` edges has the key 0.
    """
    places = tl.arange(0, BLOCK)
    digits = tl.arange(0, 256)
    limit = tl.full([], 0, tl.uint64)
    ties = degree * 0 + per_row  # picks among the keys that begin with the digits of the limit
    last_id = degree * 0 - 1
    if degree > per_row:
        candidates = degree  # keys that begin with these digits
        bits = degree * 0 + 64  # that are not known yet
        while (bits > 0) & (ties < candidates):
            bits -= 8
            shift = bits.to(tl.uint64)
            counts = tl.zeros([256], tl.int32)
            for start in range(0, degree, BLOCK):
                at = start + places
                inside = at < degree
                k, _ = _keys(keyed, keyed_layout, numbers, first, at, inside, number, period, BY_EDGE)
                digit = (k ^ limit) >> shift
                is_candidate = inside & (digit < 256)
                counts += tl.histogram(tl.where(is_candidate, digit, 0).to(tl.int32), 256)
                others = BLOCK - tl.sum(is_candidate.to(tl.int32), 0)
                counts -= tl.where(digits == 0, others, 0)
            digit_below = tl.sum((tl.cumsum(counts, 0) < ties).to(tl.int32), 0)
            ties -= tl.sum(tl.where(digits < digit_below, counts, 0), 0)
            candidates = tl.sum(tl.where(digits == digit_below, counts, 0), 0).to(tl.int64)
            limit = limit | (digit_below.to(tl.uint64) << shift)
        if ties == candidates:
            limit = limit | ((tl.full([], 1, tl.uint64) << bits.to(tl.uint64)) - 1)
            last_id = degree * 0 + 0x7FFFFFFFFFFFFFFF
        elif BY_EDGE:
            last_id = degree  # ties are counted in the order of the row
        else:
            for _ in range(ties):
                following = degree * 0 + 0x7FFFFFFFFFFFFFFF
                for start in range(0, degree, BLOCK):
                    at = start + places
                    inside = at < degree
                    k, id = _keys(keyed, keyed_layout, numbers, first, at, inside, number, period, BY_EDGE)
                    is_next = inside & (k == limit) & (id > last_id)
                    following = tl.minimum(following, tl.min(tl.where(is_next, id, 0x7FFFFFFFFFFFFFFF), 0))
                last_id = following
    return limit, ties, last_id


@triton.jit
def _empty_slots(
    ids: tl.tensor,
    edges: tl.tensor,
    first: tl.tensor,
    taken: tl.tensor,
    per_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write -1 to the slots of a row after its picks; its slots begin at `first`."""
    for start in range(0, per_row, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        is_free = (slot >= taken) & (slot < per_row)
        tl.store(ids + first + slot, -1, mask=is_free)
        if edges is not None:
            tl.store(edges + first + slot, -1, mask=is_free)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def smallest(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    nodes: tl.tensor,
    ranges: tl.tensor,
    keyed: tl.tensor,
    keyed_layout: tl.tensor,
    numbers: tl.tensor,
    count: tl.tensor,
    key: tl.tensor,
    ids: tl.tensor,
    counts: tl.tensor,
    edges: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    mixed_stream: tl.tensor,
    period: tl.tensor,
    base: tl.tensor,
    num_rows: tl.tensor,
    per_row: tl.tensor,
    above: tl.tensor,
    up_to: tl.tensor,
    BY_EDGE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Find the last pick, then write the picks in row order; a program per row.

    Rows that do not have more than `above` and at most `up_to` edges are left to another launch.
    """
    row = tl.program_id(0).to(tl.int64)
    rows = row + tl.zeros([1], tl.int64)
    _live, _node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    first = tl.sum(begin, 0)
    degree = tl.sum(end - begin, 0)
    if (degree <= above) | (degree > up_to):
        return
    taken = tl.minimum(degree, per_row)
    tl.store(counts + row, taken.to(tl.int32))
    entry = stamped(stamp, base)
    places = tl.arange(0, BLOCK)
    if numbers is not None:
        number = tl.load(numbers).to(tl.uint64, bitcast=True)
    else:
        given = tl.load(key).to(tl.uint64, bitcast=True)
        number = mixed(given ^ mixed_stream.to(tl.int64).to(tl.uint64, bitcast=True))
    limit, ties, last_id = _last_pick(
        keyed, keyed_layout, numbers, first, degree, number, period, per_row, BY_EDGE, BLOCK
    )
    done = taken * 0
    tied = taken * 0
    for start in range(0, degree, BLOCK):
        at = start + places
        inside = at < degree
        k, id = _keys(keyed, keyed_layout, numbers, first, at, inside, number, period, BY_EDGE)
        is_tie = inside & (k == limit)
        takes_tie = is_tie & (id <= last_id)
        if BY_EDGE:
            takes_tie = takes_tie & (tied + tl.cumsum(is_tie.to(tl.int64), 0) <= ties)
        is_whole = degree + at * 0 <= per_row  # a block: Triton 3.9 cannot interpret scalars in a mask
        is_picked = inside & ((k < limit) | takes_tie | is_whole)
        to = row * per_row + done + tl.cumsum(is_picked.to(tl.int64), 0) - 1
        source = store_slots(ids, edges, indices, index_layout, to, first + at, is_picked, is_picked)
        mark(table, entry, to, source, is_picked)
        done += tl.sum(is_picked.to(tl.int64), 0)
        tied += tl.sum(is_tie.to(tl.int64), 0)
    _empty_slots(ids, edges, row * per_row, taken, per_row, BLOCK)


def sample_smallest(
    csc: Csc,
    rows: DeviceRows,
    fanout: int,
    order: SourceOrder | EdgeOrder,
    slots: Slots,
    marks: Marks | None = None,
) -> None:
    """Draw the `fanout` in-edges of every row that come first in an order, in row order, into `slots`.

    No two edges of a row may have the same source, if their order is that of sources. Slots and marks are as
    for `sample_uniform`. Only the first call for a graph synchronizes with the device: it reads the largest
    degree. A row of more than `fanout` edges is read once per digit of 8 bits until the last pick is
    determined, at most 8 times, and once to write the picks.
    """
    if not 0 < fanout < 1 << 31:
        raise ValueError(f"fanout {fanout}: must be from 1 to 2^31 - 1 on the device")
    keyed: Tensor | Shards = csc.indices
    numbers, period, mixed_stream = None, 1, 0
    if isinstance(order, EdgeOrder):
        keyed = order.keys
    else:
        mixed_stream = signed(mix64(order.stream))
        keyed = csc.indices if order.source_ids is None else order.source_ids
        if (given := order.numbers) is not None:
            words = [signed(given.base), signed(given.later_base), given.later_from]
            numbers, period = torch.tensor(words, device=csc.indptr.device), given.period
    operands = (
        *(csc.indptr, *kernel_operands(csc.indices), rows.nodes, rows.ranges, *kernel_operands(keyed)),
        *(numbers, rows.count, rows.key, slots.ids, slots.counts, slots.edges),
        *((None, None) if marks is None else (marks.table, marks.stamp)),
        *(mixed_stream, period, 0 if marks is None else marks.base, csc.num_rows, fanout),
    )
    by_edge = isinstance(order, EdgeOrder)
    begin = (smallest, rows.capacity, rows.nodes, *operands)
    launch(*begin, -1, LONG_ROW, BY_EDGE=by_edge, BLOCK=_ENTRIES, num_warps=_WARPS)
    if csc.most_edges > LONG_ROW:
        long = {"BLOCK": _LONG_ENTRIES, "num_warps": _LONG_WARPS}
        launch(*begin, LONG_ROW, csc.most_edges, BY_EDGE=by_edge, **long)


_TYPES = {
    **dict.fromkeys(("indptr", "index_layout", "nodes", "ranges", "keyed", "keyed_layout"), "*i64"),
    **dict.fromkeys(("numbers", "key", "edges"), "*i64"),
    **dict.fromkeys(("indices", "count", "ids", "counts"), "*i32"),
    **dict.fromkeys(("table", "stamp"), "*i64"),
    **dict.fromkeys(("period", "base", "num_rows", "per_row", "above", "up_to"), "i32"),
    "mixed_stream": "i64",
}
_IDS = {**_TYPES, "keyed": "*i32"}  # of sources that were not renumbered
_LONG = {**_TYPES, "indices": "*i64", "ids": "*i64"}  # of graphs with 64-bit ids
_BY_SOURCE, _BY_EDGE = {"BY_EDGE": False}, {"BY_EDGE": True}
_PLAIN = dict.fromkeys(("index_layout", "ranges", "keyed_layout", "numbers", "edges"))
_SHORT, _LONG_BLOCK = {"BLOCK": _ENTRIES}, {"BLOCK": _LONG_ENTRIES}
VARIANTS = (
    Variant("smallest by source, marked", smallest, _IDS, {**_PLAIN, **_BY_SOURCE, **_SHORT}, _WARPS),
    Variant("smallest by edge, marked", smallest, _TYPES, {**_PLAIN, **_BY_EDGE, **_SHORT}, _WARPS),
    Variant("smallest by source, everything", smallest, _TYPES, {**_BY_SOURCE, **_SHORT}, _WARPS),
    Variant("smallest by source, 64-bit ids", smallest, _LONG, {**_BY_SOURCE, **_SHORT}, _WARPS),
    Variant("smallest by edge, 64-bit ids", smallest, _LONG, {**_PLAIN, **_BY_EDGE, **_SHORT}, _WARPS),
    # With the layouts of divided arrays, gfx942 has too few scalar registers (6), and ptxas for sm_90 spills
    # 16 bytes although it uses only 64 registers.
    Variant(
        *("smallest by source, long rows", smallest, _TYPES, {**_BY_SOURCE, **_LONG_BLOCK}, _LONG_WARPS),
        most_spilled=16,
    ),
    Variant(
        *("smallest by edge, long rows", smallest, _TYPES, {**_PLAIN, **_BY_EDGE, **_LONG_BLOCK}, _LONG_WARPS)
    ),
)
