"""Nodes of disjoint trees, numbered by a hash table on the device: each node once per tree.

A pair of a tree and a node is one key, `tree * nodes + node`. `claim` finds the table place of each drawn
pair among 2^b places, or takes a free one, by linear probing, and marks the place's first slot in a stamped
table of the places. `node_table.count_firsts` and `assign_pairs` then number the pairs as `node_table`
numbers nodes, with places instead of nodes. The place of a pair depends on timing; its local id does not.

Keys are cleared for each batch. There are at least two places per pair. A search that
ends after 256 steps writes the batch's stamp to `overflow`. Functions do not read values on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.node_table import (
    AT_ONCE,
    BLOCK,
    Level,
    Numbering,
    close_level,
    entry_of,
    local_or_slot,
    num_blocks,
    sum_before,
)
from khop.kernels.triton.words import mix64

# Slots of a program that claims places. Triton 3.6 compiles at most one atomic_cas per thread for AMD.
_LANES = 256
_MOST_STEPS = 256  # of the search for a place
_WARPS = 8  # of a program that assigns local ids, which needs many registers
_FREE = -1


@dataclass(frozen=True)
class PairTable:
    """Places for the pairs of one node type."""

    keys: Tensor  # int64 (2^b + 256), the key of each place, -1: free; the last 256 are for idle lanes
    num_nodes: int  # of the node type
    numbering: Numbering  # its table has an entry for each place

    @property
    def num_places(self) -> int:
        """Number of places for pairs, a power of two."""
        return self.keys.numel() - _LANES

    def clear(self) -> None:
        """Free all places."""
        self.keys.fill_(_FREE)


@dataclass(frozen=True)
class TreeRows:
    """Trees of pairs, and the values of these trees that draws need."""

    trees: Tensor  # int64 (pairs), numbers of trees
    positions: Tensor  # int64 (pairs), the position of the tree's seed
    until: Tensor | None = None  # int64 (pairs), the time limit of the tree


@dataclass(frozen=True)
class Trees:
    """The seeds of a batch's trees, by number of the tree."""

    positions: Tensor  # int64 (trees), in the epoch's global order
    until: Tensor | None = None  # int64 (trees), time limits


@dataclass(frozen=True)
class TreeLevel:
    """A level of pairs: their nodes, and their trees."""

    level: Level
    rows: TreeRows  # as long as level.nodes
    fresh_rows: TreeRows | None  # as long as level.fresh
    of_trees: Trees


def num_places(pairs: int) -> int:
    """Return the number of places for `pairs` pairs: a power of two, at least twice as many."""
    return int(max(1024, triton.next_power_of_2(2 * pairs)))


def free_keys(places: int, device: torch.device) -> Tensor:
    """Return the keys of `places` free places."""
    return torch.full((places + _LANES,), _FREE, dtype=torch.int64, device=device)


def check_pairs(num_trees: int, num_nodes: int) -> None:
    """Raise ValueError if pairs do not fit a 64-bit key."""
    if num_trees * num_nodes >= 1 << 63:
        raise ValueError(
            f"{num_trees:,} trees of {num_nodes:,} nodes: pairs exceed 64 bits; use fewer seeds per batch"
        )


@triton.jit
def _mixed(x: tl.tensor) -> tl.tensor:
    """Return keys with their bits spread, uint64. Local ids do not depend on it."""
    return mix64(x.to(tl.uint64, bitcast=True))


@triton.jit(do_not_specialize=["num_nodes", "place_mask", "base", "total", "per_row"])
def _claim(
    ids: tl.tensor,
    trees: tl.tensor,
    keys: tl.tensor,
    table: tl.tensor,
    places: tl.tensor,
    overflow: tl.tensor,
    stamp: tl.tensor,
    num_nodes: tl.tensor,
    place_mask: tl.tensor,
    base: tl.tensor,
    total: tl.tensor,
    per_row: tl.tensor,
    BLOCK: tl.constexpr,
    MOST_STEPS: tl.constexpr,
) -> None:
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + lane
    v = tl.load(ids + at, mask=at < total, other=-1).to(tl.int64)
    there = v >= 0
    key = tl.load(trees + at // per_row, mask=there, other=0) * num_nodes + v
    place = (_mixed(key) & place_mask.to(tl.uint64)).to(tl.int64)
    todo = there
    steps = 0
    while (tl.max(todo.to(tl.int32), 0) > 0) & (steps < MOST_STEPS):
        seen = tl.load(keys + place, mask=todo, other=-1)  # most pairs are already in the table
        free = todo & (seen == -1)
        # atomic_cas has no mask: each idle lane has a separate place, which it does not change.
        own = tl.where(free, place, place_mask.to(tl.int64) + 1 + lane)
        swapped = tl.where(free, key, -1)
        old = tl.atomic_cas(keys + own, tl.full([BLOCK], -1, tl.int64), swapped, sem="relaxed")
        found = todo & ((seen == key) | (free & ((old == -1) | (old == key))))
        todo = todo & (found == 0)
        place = tl.where(todo, (place + 1) & place_mask, place)
        steps += 1
    now = tl.load(stamp)
    tl.store(overflow, now, mask=tl.max(todo.to(tl.int32), 0) > 0)
    there = there & (todo == 0)
    tl.store(places + at, tl.where(there, place, -1), mask=at < total)
    tl.atomic_max(table + place, entry_of(now, base + at), mask=there, sem="relaxed")


@triton.jit
def _store_tree(
    trees_out: tl.tensor,
    positions_out: tl.tensor,
    until_out: tl.tensor,
    at: tl.tensor,
    tree: tl.tensor,
    position: tl.tensor,
    limit: tl.tensor,
    there: tl.tensor,
) -> None:
    tl.store(trees_out + at, tree, mask=there)
    tl.store(positions_out + at, position, mask=there)
    if until_out is not None:
        tl.store(until_out + at, limit, mask=there)


@triton.jit(do_not_specialize=["num_nodes", "base", "total", "capacity", "fresh_capacity"])
def _assign_pairs(
    places: tl.tensor,
    keys: tl.tensor,
    table: tl.tensor,
    firsts: tl.tensor,
    nodes: tl.tensor,
    trees: tl.tensor,
    positions: tl.tensor,
    until: tl.tensor,
    fresh: tl.tensor,
    fresh_trees: tl.tensor,
    fresh_positions: tl.tensor,
    fresh_until: tl.tensor,
    of_trees: tl.tensor,
    limits: tl.tensor,
    known: tl.tensor,
    count: tl.tensor,
    fresh_count: tl.tensor,
    overflow: tl.tensor,
    stamp: tl.tensor,
    num_nodes: tl.tensor,
    base: tl.tensor,
    total: tl.tensor,
    capacity: tl.tensor,
    fresh_capacity: tl.tensor,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    pid = tl.program_id(0)
    at = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(places + at, mask=at < total, other=-1)
    is_first = (place >= 0) & (local_or_slot(table, place) == base + at)
    before = tl.load(known)
    now = tl.load(stamp)
    ahead = sum_before(firsts, pid, AT_ONCE)
    added = ahead + tl.sum(is_first.to(tl.int32), 0)
    close_level(before, added, now, count, fresh_count, overflow, capacity, fresh_capacity)
    number = (ahead + tl.cumsum(is_first.to(tl.int32), 0) - 1).to(tl.int64)
    local = before + number
    fits = is_first & (local < capacity) & (number < fresh_capacity)
    key = tl.load(keys + place, mask=fits, other=0)
    tree = key // num_nodes
    node = key - tree * num_nodes
    position = tl.load(of_trees + tree, mask=fits, other=0)
    limit = position
    if limits is not None:
        limit = tl.load(limits + tree, mask=fits, other=0)
    tl.store(nodes + local, node, mask=fits)
    _store_tree(trees, positions, until, local, tree, position, limit, fits)
    if fresh is not None:
        tl.store(fresh + number, node, mask=fits)
        _store_tree(fresh_trees, fresh_positions, fresh_until, number, tree, position, limit, fits)
    tl.store(table + place, entry_of(now, local), mask=fits)


def claim(pairs: PairTable, slots: Tensor, trees: Tensor, places: Tensor, first_slot: int = 0) -> None:
    """Find the place of each pair and mark its first slot; `places` is int64 (slots), -1 for empty slots.

    `slots` are drawn nodes, or -1; each of `trees` has the same number of them, row by row. They are the
    slots of this hop from `first_slot` on. There must be at least one tree.
    """
    numbering = pairs.numbering
    launch(
        _claim,
        triton.cdiv(slots.numel(), _LANES),
        slots,
        slots,
        trees,
        pairs.keys,
        numbering.table,
        places,
        numbering.overflow,
        numbering.stamp,
        pairs.num_nodes,
        pairs.num_places - 1,
        numbering.base + first_slot,
        slots.numel(),
        slots.numel() // trees.numel(),
        BLOCK=_LANES,
        MOST_STEPS=_MOST_STEPS,
    )


def assign_pairs(pairs: PairTable, places: Tensor, firsts: Tensor, to: TreeLevel) -> None:
    """Give new pairs the next local ids, in the order of their first slots; see `node_table.assign`."""
    level, numbering = to.level, pairs.numbering
    launch(
        _assign_pairs,
        num_blocks(places.numel()),
        places,
        places,
        pairs.keys,
        numbering.table,
        firsts,
        level.nodes,
        *_columns(to.rows),
        level.fresh,
        *_columns(to.fresh_rows),
        to.of_trees.positions,
        to.of_trees.until,
        level.known,
        level.count,
        level.fresh_count,
        numbering.overflow,
        numbering.stamp,
        pairs.num_nodes,
        numbering.base,
        places.numel(),
        level.capacity,
        level.fresh_capacity,
        BLOCK=BLOCK,
        AT_ONCE=AT_ONCE,
        num_warps=_WARPS,
    )


def _columns(rows: TreeRows | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return (None, None, None) if rows is None else (rows.trees, rows.positions, rows.until)


_POINTERS = (
    *("trees", "keys", "table", "places", "overflow", "stamp", "nodes", "positions", "until"),
    *("fresh", "fresh_trees", "fresh_positions", "fresh_until", "of_trees", "limits"),
)
_TYPES = {
    **dict.fromkeys(_POINTERS, "*i64"),
    **dict.fromkeys(("ids", "firsts", "known", "count", "fresh_count"), "*i32"),
    **dict.fromkeys(("num_nodes", "place_mask", "base", "total", "per_row", "capacity"), "i32"),
    "fresh_capacity": "i32",
}
_WIDE = {**_TYPES, "ids": "*i64", "num_nodes": "i64"}
_CLAIM = {"BLOCK": _LANES, "MOST_STEPS": _MOST_STEPS}
_SCAN = {"BLOCK": BLOCK, "AT_ONCE": AT_ONCE}
_ALL_ROWS = ("fresh", "fresh_trees", "fresh_positions", "fresh_until", "fresh_count")
VARIANTS = (
    Variant("claim", _claim, _TYPES, _CLAIM),
    Variant("claim, wide", _claim, _WIDE, _CLAIM),
    Variant("assign pairs", _assign_pairs, _TYPES, {**_SCAN, **dict.fromkeys(_ALL_ROWS)}, _WARPS),
    Variant("assign pairs, wide, fresh", _assign_pairs, _WIDE, _SCAN, _WARPS),
)
