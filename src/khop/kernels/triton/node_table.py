"""Global ids numbered in first-seen order by a dense stamped table on the device.

The table has an int64 entry for each node of a type: `(stamp << 32) | (2^31 - 1 - x)`. The stamp is the
number of the batch. It increases, so a table is never cleared: entries of earlier batches are smaller. If `x
< base`, x is the local id of the node. Otherwise x is `base` + the first slot of the node in this hop. `base`
exceeds every local id, and `base` + slots is below 2^31.

Marking takes the maximum of entries. A local id therefore takes precedence over slots, and the first slot
over later slots. The result does not depend on the execution order of blocks.

A hop runs `mark` (or a draw that marks), `count_firsts` and `assign`; `look_up` may follow at any later time.
Functions do not read values on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import Marks

LOCAL_ID_LIMIT = 1 << 31  # base + slots stay below it: the lower half of an entry has no sign
STAMP_LIMIT = (1 << 31) - 1  # the largest stamp; clear the table before the stamps start again at 1
BLOCK = 1024  # slots of a program
AT_ONCE = 1024  # earlier blocks that a program sums at once


@dataclass(frozen=True)
class Overflow:
    """The flag of exceeded capacities, and the stamp of the batch to write there."""

    flag: Tensor  # int64 (1), the stamp of the last batch that exceeded a capacity
    stamp: Tensor  # int64 (1), the number of the batch


@dataclass(frozen=True)
class Numbering:
    """State of one node type's numbering that all hops of a batch share."""

    table: Tensor  # int64 (nodes of the type): see above
    stamp: Tensor  # int64 (1), the number of the batch
    overflow: Tensor  # int64 (1), the stamp of the last batch that exceeded a capacity
    base: int

    def marks(self, first_slot: int = 0) -> Marks:
        """Return the operands by which a draw marks its slots, the hop's slots from `first_slot` on."""
        return Marks(self.table, self.stamp, self.base + first_slot)

    @property
    def overflows(self) -> Overflow:
        """The flag of the batch, set if its nodes exceed a capacity."""
        return Overflow(self.overflow, self.stamp)

    def check_slots(self, slots: int) -> None:
        """Raise ValueError if positions of slots do not fit an entry."""
        if self.base + slots >= LOCAL_ID_LIMIT:
            raise ValueError(
                f"{self.base:,} nodes and {slots:,} slots in a hop: must be below {LOCAL_ID_LIMIT:,} in all; "
                "sample fewer neighbors, or fewer seeds per batch"
            )


@dataclass(frozen=True)
class Level:
    """Nodes of one type after a hop, and the number of nodes before and after it."""

    nodes: Tensor  # int64 (capacity or more), global ids by local id
    known: Tensor  # int32 (1), nodes before the hop
    count: Tensor  # int32 (1), nodes after the hop, at most `capacity`
    capacity: int
    fresh: Tensor | None = None  # int64 (fresh capacity), the nodes that the hop added; None: not needed
    fresh_count: Tensor | None = None  # int32 (1), their number, at most the fresh capacity

    @property
    def fresh_capacity(self) -> int:
        """Number of nodes that the hop may add."""
        return self.capacity if self.fresh is None else self.fresh.numel()


@triton.jit
def entry_of(stamp: tl.tensor, x: tl.tensor) -> tl.tensor:
    """Return the table entry of a stamp and a local id or base + slot, int64."""
    return (stamp << 32) | (2147483647 - x)


@triton.jit
def local_or_slot(table: tl.tensor, v: tl.tensor) -> tl.tensor:
    """Return x of the entries of nodes v: the local id, or base + slot. Nodes below 0 are not loaded."""
    return 2147483647 - (tl.load(table + v, mask=v >= 0, other=0) & 0x7FFFFFFF)


@triton.jit
def sum_before(values: tl.tensor, place: tl.tensor, AT_ONCE: tl.constexpr) -> tl.tensor:
    """Return the sum of the values before a place, without waiting for other blocks."""
    b = tl.arange(0, AT_ONCE)
    total = tl.zeros([AT_ONCE], values.dtype.element_ty)
    start = 0
    while start < place:
        total += tl.load(values + start + b, mask=start + b < place, other=0)
        start += AT_ONCE
    return tl.sum(total, 0)


@triton.jit
def close_level(
    known: tl.tensor,
    added: tl.tensor,
    stamp: tl.tensor,
    count: tl.tensor,
    fresh_count: tl.tensor,
    overflow: tl.tensor,
    capacity: tl.tensor,
    fresh_capacity: tl.tensor,
) -> None:
    """Store the counts of a level, and the stamp if they exceed a capacity. Only the last block does."""
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(count, tl.minimum(known + added, capacity))
        if fresh_count is not None:
            tl.store(fresh_count, tl.minimum(added, fresh_capacity))
        is_over = (known + added > capacity) | (added > fresh_capacity)
        tl.store(overflow, stamp, mask=is_over)


@triton.jit(do_not_specialize=["base", "total"])
def _mark(
    ids: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    base: tl.tensor,
    total: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(ids + at, mask=at < total, other=-1).to(tl.int64)
    tl.atomic_max(table + v, entry_of(tl.load(stamp), base + at), mask=v >= 0, sem="relaxed")


@triton.jit(do_not_specialize=["base", "total"])
def _count_firsts(
    ids: tl.tensor,
    table: tl.tensor,
    firsts: tl.tensor,
    base: tl.tensor,
    total: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(ids + at, mask=at < total, other=-1).to(tl.int64)
    is_first = (v >= 0) & (local_or_slot(table, v) == base + at)
    tl.store(firsts + tl.program_id(0), tl.sum(is_first.to(tl.int32), 0))


@triton.jit(do_not_specialize=["base", "total", "capacity", "fresh_capacity"])
def _assign(
    ids: tl.tensor,
    table: tl.tensor,
    firsts: tl.tensor,
    nodes: tl.tensor,
    fresh: tl.tensor,
    known: tl.tensor,
    count: tl.tensor,
    fresh_count: tl.tensor,
    overflow: tl.tensor,
    stamp: tl.tensor,
    base: tl.tensor,
    total: tl.tensor,
    capacity: tl.tensor,
    fresh_capacity: tl.tensor,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    pid = tl.program_id(0)
    at = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(ids + at, mask=at < total, other=-1).to(tl.int64)
    is_first = (v >= 0) & (local_or_slot(table, v) == base + at)
    before = tl.load(known)
    now = tl.load(stamp)
    ahead = sum_before(firsts, pid, AT_ONCE)
    added = ahead + tl.sum(is_first.to(tl.int32), 0)
    close_level(before, added, now, count, fresh_count, overflow, capacity, fresh_capacity)
    number = (ahead + tl.cumsum(is_first.to(tl.int32), 0) - 1).to(tl.int64)
    local = before + number
    fits = is_first & (local < capacity) & (number < fresh_capacity)
    tl.store(nodes + local, v, mask=fits)
    if fresh is not None:
        tl.store(fresh + number, v, mask=fits)
    tl.store(table + v, entry_of(now, local), mask=fits)


@triton.jit(do_not_specialize=["base", "total", "empty"])
def _look_up(
    ids: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    base: tl.tensor,
    total: tl.tensor,
    empty: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(ids + at, mask=at < total, other=-1).to(tl.int64)
    x = local_or_slot(table, v)
    # A node beyond a capacity has no local id: 0 is a valid row, and the batch is discarded.
    local = tl.where(v < 0, empty, tl.where(x < base, x, 0))
    tl.store(out + at, local.to(out.dtype.element_ty), mask=at < total)


def num_blocks(slots: int) -> int:
    """Return the number of blocks of slots: the length of `firsts`."""
    return -(-slots // BLOCK)


def mark(numbering: Numbering, ids: Tensor) -> None:
    """Mark the first slot of each id, int32 or int64 (slots). Ids of -1 are empty slots."""
    launch(
        _mark,
        num_blocks(ids.numel()),
        ids,
        ids,
        numbering.table,
        numbering.stamp,
        numbering.base,
        ids.numel(),
        BLOCK=BLOCK,
    )


def count_firsts(numbering: Numbering, ids: Tensor, firsts: Tensor) -> None:
    """Count the nodes that are seen first in each block of marked slots; `firsts` is int32 (blocks)."""
    launch(
        _count_firsts,
        num_blocks(ids.numel()),
        ids,
        ids,
        numbering.table,
        firsts,
        numbering.base,
        ids.numel(),
        BLOCK=BLOCK,
    )


def assign(numbering: Numbering, ids: Tensor, firsts: Tensor, level: Level) -> None:
    """Give new nodes the next local ids, in the order of their first slots, and write them to the level.

    Nodes beyond a capacity get no local id. The batch's stamp in `overflow` reports it.
    """
    launch(
        _assign,
        num_blocks(ids.numel()),
        ids,
        ids,
        numbering.table,
        firsts,
        level.nodes,
        level.fresh,
        level.known,
        level.count,
        level.fresh_count,
        numbering.overflow,
        numbering.stamp,
        numbering.base,
        ids.numel(),
        level.capacity,
        level.fresh_capacity,
        BLOCK=BLOCK,
        AT_ONCE=AT_ONCE,
    )


def look_up(numbering: Numbering, ids: Tensor, out: Tensor, empty: int = -1) -> None:
    """Write the local ids of numbered nodes to `out`, int32 or int64 (slots), and `empty` for empty slots."""
    launch(
        _look_up,
        num_blocks(ids.numel()),
        ids,
        ids,
        numbering.table,
        out,
        numbering.base,
        ids.numel(),
        empty,
        BLOCK=BLOCK,
    )


_TYPES = {
    **dict.fromkeys(("ids", "table", "stamp", "nodes", "fresh", "overflow", "out"), "*i64"),
    **dict.fromkeys(("firsts", "known", "count", "fresh_count"), "*i32"),
    **dict.fromkeys(("base", "total", "capacity", "fresh_capacity", "empty"), "i32"),
}
_NARROW = {**_TYPES, "ids": "*i32", "out": "*i32"}
_SCAN = {"BLOCK": BLOCK, "AT_ONCE": AT_ONCE}
VARIANTS = (
    Variant("mark", _mark, _TYPES, {"BLOCK": BLOCK}),
    Variant("count firsts", _count_firsts, _NARROW, {"BLOCK": BLOCK}),
    Variant("count firsts, int64", _count_firsts, _TYPES, {"BLOCK": BLOCK}),
    Variant("assign", _assign, _NARROW, {**_SCAN, "fresh": None, "fresh_count": None}),
    Variant("assign, fresh, int64", _assign, _TYPES, _SCAN),
    Variant("look up", _look_up, _NARROW, {"BLOCK": BLOCK}),
    Variant("look up, int64", _look_up, _TYPES, {"BLOCK": BLOCK}),
)
