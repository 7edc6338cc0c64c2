"""Uniform draws of in-edges on the device, bitwise equal to `sample_hop`."""

from __future__ import annotations

import triton
import triton.language as tl

from khop.kernels.csc import Csc
from khop.kernels.gather import kernel_operands
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import DeviceRows, Marks, Slots, draw_ids, mark, row_edges, stamped, store_slots
from khop.kernels.triton.words import WIDE_DEGREE, draw_below, four_words, reduce_wide, row_keys

MOST_PICKS = 8192  # distinct picks per row: a row's picks must fit the registers of one program
_MOST_IN_REGISTERS = 16  # picks per row, with a thread per row
_ROWS = 128  # per program, a thread for each
_SLOTS = 256  # per program, if slots are independent
_TILE = 256  # picks per program, at least those of a row
_UNSPECIALIZED = ["stream", "base", "num_rows", "capacity", "per_row"]


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def distinct_in_registers(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
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
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Floyd's algorithm with a thread per row: K picks in registers, every comparison unrolled."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < capacity
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    degree = end - begin
    whole = degree <= K
    drawn = tl.where(whole, degree, K).to(tl.int32)
    tl.store(counts + rows, drawn, mask=inside)
    keys = row_keys(key, trees, rows, live)
    id = draw_ids(original_ids, node, live)
    entry = stamped(stamp, base)
    w0, w1, w2, w3 = four_words(keys, id, stream, 0)
    b0, b1, b2, b3 = w0, w1, w2, w3  # for 64-bit draws, two per block
    picks = ()
    for j in tl.static_range(K):
        if j % 4 == 0 and j > 0:
            w0, w1, w2, w3 = four_words(keys, id, stream, j // 4)
        word = w0 if j % 4 == 0 else (w1 if j % 4 == 1 else (w2 if j % 4 == 2 else w3))
        last = degree - K + j
        pick = tl.umulhi(word, (last + 1).to(tl.uint32))
        if WIDE:
            if j % 2 == 0 and j > 0:
                b0, b1, b2, b3 = four_words(keys, id, stream, j // 2)
            low, high = (b0, b1) if j % 2 == 0 else (b2, b3)
            pick = tl.where(degree < WIDE_DEGREE, pick.to(tl.int64), reduce_wide(low, high, last + 1))
        else:
            pick = pick.to(tl.int32)
        is_taken = rows < 0
        for i in tl.static_range(j):
            is_taken = is_taken | (picks[i] == pick)
        pick = tl.where(whole, j, tl.where(is_taken, last, pick.to(tl.int64))).to(pick.dtype)
        picks = picks + (pick,)  # type: ignore[assignment]  # noqa: RUF005
        there = live & (j < drawn)
        at = rows * K + j
        source = store_slots(ids, edges, indices, index_layout, at, begin + pick, there, inside)
        mark(table, entry, at, source, there)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def distinct_in_tile(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
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
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Floyd's algorithm with the picks as a tile (rows, slots). WIDTH: `per_row`, as a power of two."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < capacity
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    degree = end - begin
    whole = degree <= per_row
    drawn = tl.where(whole, degree, per_row).to(tl.int32)
    tl.store(counts + rows, drawn, mask=inside)
    keys = row_keys(key, trees, rows, live)
    id = draw_ids(original_ids, node, live)
    entry = stamped(stamp, base)
    slots = tl.arange(0, WIDTH)
    picks = tl.where(whole[:, None], slots[None, :], -1).to(tl.int64 if WIDE else tl.int32)
    drawing = live & (whole == 0)
    if tl.max(drawing.to(tl.int32), 0) > 0:
        for j in range(per_row):
            last = degree - per_row + j
            number = tl.zeros([BLOCK], tl.int32) + j
            pick = draw_below(keys, id, stream, number, last + 1, degree, WIDE)
            is_taken = tl.max((picks == pick[:, None]).to(tl.int32), 1) > 0
            pick = tl.where(is_taken, last, pick).to(picks.dtype)
            here = drawing[:, None] & (slots[None, :] == j)
            picks = tl.where(here, pick[:, None], picks)
    there = live[:, None] & (slots[None, :] < drawn[:, None])
    at = rows[:, None] * per_row + slots[None, :]
    is_slot = inside[:, None] & (slots[None, :] < per_row)
    source = store_slots(ids, edges, indices, index_layout, at, begin[:, None] + picks, there, is_slot)
    mark(table, entry, at, source, there)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def repeated(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
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
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Draws with replacement, a thread per slot: slots are independent."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = at // per_row
    number = (at % per_row).to(tl.int32)
    inside = rows < capacity
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    degree = end - begin
    there = live & (degree > 0)
    tl.store(counts + rows, tl.where(there, per_row, 0), mask=inside & (number == 0))
    keys = row_keys(key, trees, rows, live)
    id = draw_ids(original_ids, node, live)
    entry = stamped(stamp, base)
    pick = draw_below(keys, id, stream, number, degree, degree, WIDE)
    source = store_slots(ids, edges, indices, index_layout, at, begin + pick, there, inside)
    mark(table, entry, at, source, there)


def sample_uniform(
    csc: Csc, rows: DeviceRows, fanout: int, replacement: bool, slots: Slots, marks: Marks | None = None
) -> None:
    """Draw up to `fanout` in-edges of every row into `slots`, which have `fanout` slots per row.

    Slots of a row are filled from its first one, in the order of `sample_hop`. Unused slots get -1. With
    `marks`, the first position of every drawn node is marked in the same launch. Only the first call for a
    graph synchronizes with the device: it reads the largest degree.
    """
    if not 0 < fanout <= most_picks(replacement):
        raise ValueError(f"fanout {fanout}: must be from 1 to {most_picks(replacement)} on the device")
    pointers = (
        *(csc.indptr, *kernel_operands(csc.indices)),
        *(rows.nodes, rows.original_ids, rows.trees, rows.ranges),
        *(rows.count, rows.key, slots.ids, slots.counts, slots.edges),
        *((None, None) if marks is None else (marks.table, marks.stamp)),
    )
    numbers = (rows.signed_stream, 0 if marks is None else marks.base, csc.num_rows, rows.capacity)
    on, wide = rows.nodes, csc.has_hubs
    if replacement:
        programs = triton.cdiv(rows.capacity * fanout, _SLOTS)
        launch(repeated, programs, on, *pointers, *numbers, fanout, WIDE=wide, BLOCK=_SLOTS)
    elif fanout <= _MOST_IN_REGISTERS:
        programs = triton.cdiv(rows.capacity, _ROWS)
        launch(distinct_in_registers, programs, on, *pointers, *numbers, K=fanout, WIDE=wide, BLOCK=_ROWS)
    else:
        shape = _tile(fanout)
        programs, warps = triton.cdiv(rows.capacity, shape["BLOCK"]), _warps(fanout)
        launch(
            distinct_in_tile, programs, on, *pointers, *numbers, fanout, WIDE=wide, **shape, num_warps=warps
        )


def most_picks(replacement: bool) -> int:
    """Return the largest fanout that the kernels draw."""
    return (1 << 31) - 1 if replacement else MOST_PICKS


def _tile(fanout: int) -> dict[str, int]:
    """Return rows and slots of a program's tile."""
    width = triton.next_power_of_2(fanout)
    return {"WIDTH": width, "BLOCK": max(1, _TILE // width)}


def _warps(fanout: int) -> int:
    """Return the number of warps of a program, so that a thread has at most 8 picks."""
    return max(4, int(triton.next_power_of_2(fanout)) // _TILE)


_TYPES = {
    **dict.fromkeys(("indptr", "index_layout", "nodes", "original_ids", "trees", "ranges"), "*i64"),
    **dict.fromkeys(("key", "edges"), "*i64"),
    **dict.fromkeys(("indices", "count", "ids", "counts"), "*i32"),
    **dict.fromkeys(("table", "stamp"), "*i64"),
    **dict.fromkeys(("stream", "base", "num_rows", "capacity", "per_row"), "i32"),
}
_WHOLE = {"index_layout": None}
_DIVIDED = dict.fromkeys(("original_ids", "trees", "ranges", "edges"))
_PLAIN = {**_WHOLE, **_DIVIDED}
_UNMARKED = dict.fromkeys(("table", "stamp"))
_THREADS = {"WIDE": False, "BLOCK": _ROWS}
_LONG = {**_TYPES, "indices": "*i64", "ids": "*i64"}  # for graphs with 64-bit ids
VARIANTS = (
    *(
        Variant(f"uniform {k}, marked", distinct_in_registers, _TYPES, {**_PLAIN, **_THREADS, "K": k})
        for k in (1, 5, 10, 15, 16)
    ),
    Variant("uniform 15", distinct_in_registers, _TYPES, {**_PLAIN, **_UNMARKED, **_THREADS, "K": 15}),
    Variant("uniform 15, divided", distinct_in_registers, _TYPES, {**_DIVIDED, **_THREADS, "K": 15}),
    Variant("uniform 25, divided", distinct_in_tile, _TYPES, {**_DIVIDED, "WIDE": False, **_tile(25)}),
    Variant(
        *("uniform 15, everything", distinct_in_registers, _TYPES),
        {**_WHOLE, **_THREADS, "K": 15, "WIDE": True},
    ),
    *(
        Variant(f"uniform {k}", distinct_in_tile, _TYPES, {**_WHOLE, "WIDE": wide, **_tile(k)}, _warps(k))
        for k, wide in ((25, False), (64, True), (1000, False), (MOST_PICKS, True))
    ),
    Variant(
        *("uniform 15, everything, 64-bit ids", distinct_in_registers, _LONG),
        {**_WHOLE, **_THREADS, "K": 15, "WIDE": True},
    ),
    Variant(
        "uniform 25, 64-bit ids", distinct_in_tile, _LONG, {**_WHOLE, "WIDE": True, **_tile(25)}, _warps(25)
    ),
    Variant("uniform, replacement, 64-bit ids", repeated, _LONG, {**_WHOLE, "WIDE": True, "BLOCK": _SLOTS}),
    Variant("uniform, replacement", repeated, _TYPES, {**_PLAIN, "WIDE": False, "BLOCK": _SLOTS}),
    Variant("uniform, replacement, everything", repeated, _TYPES, {**_WHOLE, "WIDE": True, "BLOCK": _SLOTS}),
)
