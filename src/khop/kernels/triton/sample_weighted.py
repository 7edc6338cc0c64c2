"""Weighted draws of in-edges on the device, bitwise equal to `sample_hop`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.gather import Shards, kernel_operands
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import (
    DeviceRows,
    Marks,
    Slots,
    draw_ids,
    entry_at,
    mark,
    row_edges,
    stamped,
    store_slots,
)
from khop.kernels.triton.words import (
    NO_PICK,
    edge_weight,
    first_above,
    is_picked,
    next_pick,
    no_picks,
    row_keys,
    weight_of_picks,
    wide_draw,
    with_pick,
)

MOST_PICKS = 128  # distinct picks per row: a wider tile spills registers
_MOST_REPEATS = tl.constexpr(64)  # per row; then the remaining edges are drawn exactly
_MOST_IN_REGISTERS = 10  # picks per row, with a thread per row: more exceed the registers of some GPUs
_ROWS = 128  # per program, a thread for each
_SLOTS = 128  # per program, if slots are independent
_TILE = 64  # picks per program, at least those of a row; a warp for each
_UNSPECIALIZED = ["stream", "base", "num_rows", "capacity", "per_row"]


@triton.jit
def row_weights(
    indptr: tl.tensor,
    sums: tl.tensor,
    sum_layout: tl.tensor,
    node: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    live: tl.tensor,
) -> tl.tensor:
    """Return each row's first edge, the sum before `begin` and the sum of weights from `begin` to `end`."""
    some = live & (begin < end)
    first = tl.load(indptr + node, mask=some, other=0)
    is_later = some & (begin > first)
    start = tl.load(entry_at(sums, sum_layout, begin - 1, is_later), mask=is_later, other=0)
    last = tl.load(entry_at(sums, sum_layout, end - 1, some), mask=some, other=0)
    total = tl.where(some, last - start, 0)
    return first, start, total


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def repeated(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    sums: tl.tensor,
    sum_layout: tl.tensor,
    nodes: tl.tensor,
    original_ids: tl.tensor,
    trees: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    key: tl.tensor,
    ids: tl.tensor,
    counts: tl.tensor,
    edges: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    stream: tl.tensor,
    base: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    per_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Draws with replacement, a thread per slot: slots are independent."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = at // per_row
    number = (at % per_row).to(tl.int32)
    inside = rows < capacity
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    _, start, total = row_weights(indptr, sums, sum_layout, node, begin, end, live)
    there = live & (total > 0)
    tl.store(counts + rows, tl.where(there, per_row, 0), mask=inside & (number == 0))
    keys = row_keys(key, trees, rows, live)
    id = draw_ids(original_ids, node, live)
    height = start + wide_draw(keys, id, stream, number, total)
    edge = first_above(sums, sum_layout, begin, end, height, there)
    source = store_slots(ids, edges, indices, index_layout, at, edge, there, inside)
    mark(table, stamped(stamp, base), at, source, there)


@triton.jit
def height_of_rest(
    sums: tl.tensor,
    sum_layout: tl.tensor,
    picks: tl.tensor,
    first: tl.tensor,
    begin: tl.tensor,
    height: tl.tensor,
    picked: tl.tensor,
    K: tl.constexpr,
    TILED: tl.constexpr,
) -> tl.tensor:
    """Raise a height among unpicked edges by every pick that begins at or below it, in ascending order."""
    last = picked * 0 - 1
    for _ in range(tl.max(picked, 0)):
        pick = next_pick(picks, last, K, TILED)
        is_pick = (pick != NO_PICK) & (picked > 0)
        weight, before = edge_weight(sums, sum_layout, begin + pick, first, is_pick)
        height = tl.where(is_pick & (height >= before), height + weight, height)
        last = tl.where(is_pick, pick, last)
    return height


@triton.jit
def distinct_picks(
    sums: tl.tensor,
    sum_layout: tl.tensor,
    first: tl.tensor,
    start: tl.tensor,
    total: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    keys: tl.tensor,
    id: tl.tensor,
    stream: tl.tensor,
    drawing: tl.tensor,
    per_row: tl.tensor,
    K: tl.constexpr,
    TILED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the first `per_row` distinct edges drawn for each row, and their number, int32 (rows)."""
    picks = no_picks(K, TILED, BLOCK)
    picked = tl.zeros([BLOCK], tl.int32)
    repeats = tl.zeros([BLOCK], tl.int32)
    active = drawing
    while tl.max(active.to(tl.int32), 0) > 0:
        height = start + wide_draw(keys, id, stream, picked + repeats, total)
        pick = (first_above(sums, sum_layout, begin, end, height, active) - begin).to(tl.int32)
        is_repeat = active & is_picked(picks, pick, K, TILED)
        is_new = active & (is_repeat == 0)
        picks = with_pick(picks, pick, picked, is_new, K, TILED)
        picked += is_new.to(tl.int32)
        repeats += is_repeat.to(tl.int32)
        active = active & (picked < per_row) & (repeats < _MOST_REPEATS)
    rest = drawing & (picked < per_row)
    while tl.max(rest.to(tl.int32), 0) > 0:
        left = total - weight_of_picks(picks, sums, sum_layout, begin, first, rest, K, TILED)
        rest = rest & (left > 0)
        height = start + wide_draw(keys, id, stream, picked + repeats, left)
        among = tl.where(rest, picked, 0)
        height = height_of_rest(sums, sum_layout, picks, first, begin, height, among, K, TILED)
        pick = (first_above(sums, sum_layout, begin, end, height, rest) - begin).to(tl.int32)
        picks = with_pick(picks, pick, picked, rest, K, TILED)
        picked += rest.to(tl.int32)
        rest = rest & (picked < per_row)
    return picks, picked


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def distinct_in_registers(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    sums: tl.tensor,
    sum_layout: tl.tensor,
    nodes: tl.tensor,
    original_ids: tl.tensor,
    trees: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    key: tl.tensor,
    ids: tl.tensor,
    counts: tl.tensor,
    edges: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    stream: tl.tensor,
    base: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Successive sampling with a thread per row and K picks in registers."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < capacity
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    first, start, total = row_weights(indptr, sums, sum_layout, node, begin, end, live)
    whole = end - begin <= K
    entry = stamped(stamp, base)
    # A row that is returned whole keeps its edges of positive weight, in order and without gaps.
    filled = tl.zeros([BLOCK], tl.int32)
    for j in tl.static_range(K):
        edge = begin + j
        weight, _ = edge_weight(sums, sum_layout, edge, first, whole & (edge < end))
        at = rows * K + filled
        source = store_slots(ids, edges, indices, index_layout, at, edge, weight > 0, weight > 0)
        mark(table, entry, at, source, weight > 0)
        filled += (weight > 0).to(tl.int32)
    # The other rows draw.
    keys = row_keys(key, trees, rows, live)
    id = draw_ids(original_ids, node, live)
    drawing = live & (whole == 0) & (total > 0)
    picks, picked = distinct_picks(
        sums, sum_layout, first, start, total, begin, end, keys, id, stream, drawing, K, K, False, BLOCK
    )
    tl.store(counts + rows, tl.where(whole, filled, picked), mask=inside)
    for j in tl.static_range(K):
        is_pick = drawing & (j < picked)
        is_slot = inside & (j >= filled)
        source = store_slots(
            ids, edges, indices, index_layout, rows * K + j, begin + picks[j], is_pick, is_slot
        )
        mark(table, entry, rows * K + j, source, is_pick)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def distinct_in_tile(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    sums: tl.tensor,
    sum_layout: tl.tensor,
    nodes: tl.tensor,
    original_ids: tl.tensor,
    trees: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    key: tl.tensor,
    ids: tl.tensor,
    counts: tl.tensor,
    edges: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    stream: tl.tensor,
    base: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    per_row: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Successive sampling with the picks as a tile (rows, slots). WIDTH: `per_row`, as a power of two."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < capacity
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    first, start, total = row_weights(indptr, sums, sum_layout, node, begin, end, live)
    whole = end - begin <= per_row
    entry = stamped(stamp, base)
    # Whole rows first, as in registers.
    slots = tl.arange(0, WIDTH)[None, :]
    at = rows[:, None] * per_row + slots
    edge = begin[:, None] + slots
    is_edge = whole[:, None] & (edge < end[:, None])
    weight, _ = edge_weight(sums, sum_layout, edge, first[:, None], is_edge)
    weighs = weight > 0
    place = at - slots + tl.cumsum(weighs.to(tl.int32), 1) - 1
    filled = tl.sum(weighs.to(tl.int32), 1)
    source = store_slots(ids, edges, indices, index_layout, place, edge, weighs, weighs)
    mark(table, entry, place, source, weighs)
    # The other rows draw.
    keys = row_keys(key, trees, rows, live)
    id = draw_ids(original_ids, node, live)
    drawing = live & (whole == 0) & (total > 0)
    picks, picked = distinct_picks(
        sums,
        sum_layout,
        first,
        start,
        total,
        begin,
        end,
        keys,
        id,
        stream,
        drawing,
        per_row,
        WIDTH,
        True,
        BLOCK,
    )
    tl.store(counts + rows, tl.where(whole, filled, picked), mask=inside)
    is_pick = drawing[:, None] & (slots < picked[:, None])
    is_slot = inside[:, None] & (slots < per_row) & (slots >= filled[:, None])
    source = store_slots(ids, edges, indices, index_layout, at, begin[:, None] + picks, is_pick, is_slot)
    mark(table, entry, at, source, is_pick)


def sample_weighted(
    csc: Csc,
    sums: Tensor | Shards,
    rows: DeviceRows,
    fanout: int,
    replacement: bool,
    slots: Slots,
    marks: Marks | None = None,
) -> None:
    """Draw up to `fanout` in-edges of every row by weight into `slots`, which have `fanout` slots per row.

    `sums`, int64 (edges), is from `weight_sums`. Slots of a row are filled from its first one, in the order
    of `sample_hop`; edges of weight zero are skipped. Unused slots get -1. With `marks`, the first position
    of every drawn node is marked in the same launch. Does not synchronize with the device.
    """
    if not 0 < fanout <= most_picks(replacement):
        raise ValueError(f"fanout {fanout}: must be from 1 to {most_picks(replacement)} on the device")
    operands = (
        *(csc.indptr, *kernel_operands(csc.indices), *kernel_operands(sums)),
        *(rows.nodes, rows.original_ids, rows.trees, rows.ranges),
        *(rows.count, rows.key, slots.ids, slots.counts, slots.edges),
        *((None, None) if marks is None else (marks.table, marks.stamp)),
        *(rows.signed_stream, 0 if marks is None else marks.base, csc.num_rows, rows.capacity),
    )
    on = rows.nodes
    if replacement:
        programs = triton.cdiv(rows.capacity * fanout, _SLOTS)
        launch(repeated, programs, on, *operands, fanout, BLOCK=_SLOTS)
    elif fanout <= _MOST_IN_REGISTERS:
        programs = triton.cdiv(rows.capacity, _ROWS)
        launch(distinct_in_registers, programs, on, *operands, K=fanout, BLOCK=_ROWS, num_warps=_ROWS // 32)
    else:
        tile = _tile(fanout)
        programs = triton.cdiv(rows.capacity, tile["BLOCK"])
        launch(distinct_in_tile, programs, on, *operands, fanout, **tile, num_warps=_warps(fanout))


def most_picks(replacement: bool) -> int:
    """Return the largest fanout that the kernels draw."""
    return (1 << 31) - 1 if replacement else MOST_PICKS


def _tile(fanout: int) -> dict[str, int]:
    """Return rows and slots of a program's tile."""
    width = triton.next_power_of_2(fanout)
    return {"WIDTH": width, "BLOCK": max(1, _TILE // width)}


def _warps(fanout: int) -> int:
    """Return the number of warps of a program."""
    return max(1, int(triton.next_power_of_2(fanout)) // _TILE)


_TYPES = {
    **dict.fromkeys(("indptr", "index_layout", "sums", "sum_layout", "nodes", "original_ids"), "*i64"),
    **dict.fromkeys(("trees", "ranges", "key", "edges"), "*i64"),
    **dict.fromkeys(("indices", "count", "ids", "counts"), "*i32"),
    **dict.fromkeys(("table", "stamp"), "*i64"),
    **dict.fromkeys(_UNSPECIALIZED, "i32"),
}
_WHOLE = dict.fromkeys(("index_layout", "sum_layout"))
_DIVIDED = dict.fromkeys(("original_ids", "trees", "ranges", "edges"))
_PLAIN = {**_WHOLE, **_DIVIDED}
_LONG = {**_TYPES, "indices": "*i64", "ids": "*i64"}  # for graphs with 64-bit ids
VARIANTS = (
    Variant("weighted, replacement", repeated, _TYPES, {**_PLAIN, "BLOCK": _SLOTS}),
    Variant("weighted, replacement, everything", repeated, _TYPES, {**_WHOLE, "BLOCK": _SLOTS}),
    *(
        Variant(
            *(f"weighted {k}", distinct_in_registers, _TYPES),
            {**_PLAIN, "K": k, "BLOCK": _ROWS},
            _ROWS // 32,
        )
        for k in (1, 5, 10)
    ),
    Variant(
        *(
            "weighted 10, everything",
            distinct_in_registers,
            _TYPES,
            {**_WHOLE, "K": 10, "BLOCK": _ROWS},
            _ROWS // 32,
        )
    ),
    *(
        Variant(f"weighted {k}", distinct_in_tile, _TYPES, {**_PLAIN, **_tile(k)}, _warps(k))
        for k in (15, 25, 64, 100)
    ),
    *(
        Variant(f"weighted {k}, everything", distinct_in_tile, _TYPES, {**_WHOLE, **_tile(k)}, _warps(k))
        for k in (15, 25, MOST_PICKS)
    ),
    Variant("weighted, replacement, divided", repeated, _TYPES, {**_DIVIDED, "BLOCK": _SLOTS}),
    Variant(
        *("weighted 10, divided", distinct_in_registers, _TYPES),
        {**_DIVIDED, "K": 10, "BLOCK": _ROWS},
        _ROWS // 32,
    ),
    Variant(  # ptxas for sm_90 spills 8 bytes, although it uses only 80 registers
        *("weighted 15, divided", distinct_in_tile, _TYPES, {**_DIVIDED, **_tile(15)}, _warps(15)),
        most_spilled=8,
    ),
    Variant("weighted, replacement, 64-bit ids", repeated, _LONG, {**_WHOLE, "BLOCK": _SLOTS}),
    Variant(
        *(
            "weighted 10, 64-bit ids",
            distinct_in_registers,
            _LONG,
            {**_WHOLE, "K": 10, "BLOCK": _ROWS},
            _ROWS // 32,
        )
    ),
    Variant("weighted 25, 64-bit ids", distinct_in_tile, _LONG, {**_WHOLE, **_tile(25)}, _warps(25)),
)
