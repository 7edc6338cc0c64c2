"""Removal of drawn edges on the device, bitwise equal to `khop.kernels.edge_arrays`."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import Marks, Slots, mark, stamped
from khop.kernels.triton.words import first_above

_ROWS = 128  # per program
_UNSPECIALIZED = ["base", "num_sources", "num_pairs", "capacity", "per_row"]
NO_PAIR = (1 << 63) - 1  # greater than all pairs


@dataclass(frozen=True)
class ExcludedPairs:
    """Pairs of nodes; edges between them are removed."""

    pairs: Tensor  # int64 (pairs), from `pairs_of`, then NO_PAIR
    num_sources: int  # number of source nodes


def check_pairs(num_sources: int, num_destinations: int) -> None:
    """Raise ValueError if pairs of nodes do not fit 64 bits."""
    if num_sources * num_destinations >= NO_PAIR:
        given = f"{num_sources:,} sources and {num_destinations:,} destinations"
        raise ValueError(f"{given}: pairs exceed 64 bits; omit exclude, or sample on the CPU")


def pairs_of(excluded: Tensor, num_sources: int) -> Tensor:
    """Return sorted pairs, int64, of int64 (2, pairs) ends, sources first."""
    return (excluded[1] * num_sources + excluded[0]).sort().values


@triton.jit
def is_excluded(
    pairs: tl.tensor,
    num_pairs: tl.tensor,
    num_sources: tl.tensor,
    node: tl.tensor,
    source: tl.tensor,
    there: tl.tensor,
) -> tl.tensor:
    """Return True for each existing edge whose ends are among the sorted pairs."""
    pair = node * num_sources + source
    zero = pair * 0
    place = first_above(pairs, None, zero, zero + num_pairs, pair, there)
    is_pair = there & (place > 0)
    return is_pair & (tl.load(pairs + place - 1, mask=is_pair, other=-1) == pair)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def _exclude(
    nodes: tl.tensor,
    pairs: tl.tensor,
    ids: tl.tensor,
    counts: tl.tensor,
    edges: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    base: tl.tensor,
    num_sources: tl.tensor,
    num_pairs: tl.tensor,
    capacity: tl.tensor,
    per_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    drawn = tl.load(counts + rows, mask=rows < capacity, other=0)
    node = tl.load(nodes + rows, mask=drawn > 0, other=0)
    entry = stamped(stamp, base)
    kept = tl.zeros([BLOCK], tl.int32)
    for j in range(per_row):
        there = j < drawn
        at = rows * per_row + j
        source = tl.load(ids + at, mask=there, other=-1).to(tl.int64)
        stays = there & (is_excluded(pairs, num_pairs, num_sources, node, source, there) == 0)
        # A row closes its gaps. No later slot is overwritten before it is read.
        to = rows * per_row + kept
        if edges is not None:
            tl.store(edges + to, tl.load(edges + at, mask=there, other=-1), mask=stays)
        tl.store(ids + to, source.to(ids.dtype.element_ty), mask=stays)
        mark(table, entry, to, source, stays)
        kept += stays.to(tl.int32)
    for j in range(per_row):
        is_gap = (j >= kept) & (j < drawn)
        tl.store(ids + rows * per_row + j, -1, mask=is_gap)
        if edges is not None:
            tl.store(edges + rows * per_row + j, -1, mask=is_gap)
    tl.store(counts + rows, kept, mask=rows < capacity)


def exclude_edges(nodes: Tensor, excluded: ExcludedPairs, slots: Slots, marks: Marks | None = None) -> None:
    """Remove the edges between excluded pairs from drawn slots; the other edges of a row keep their order.

    `nodes`, int64 (capacity), are the destinations of the rows. With `marks`, the first position of every
    remaining node is marked in the same launch. Does not synchronize with the device.
    """
    capacity = slots.counts.numel()
    launch(
        *(_exclude, triton.cdiv(capacity, _ROWS), nodes, nodes, excluded.pairs),
        *(slots.ids, slots.counts, slots.edges),
        *((None, None, 0) if marks is None else (marks.table, marks.stamp, marks.base)),
        *(excluded.num_sources, excluded.pairs.numel(), capacity, slots.ids.numel() // max(capacity, 1)),
        BLOCK=_ROWS,
    )


_TYPES = {
    **dict.fromkeys(("nodes", "pairs", "edges", "table", "stamp"), "*i64"),
    **dict.fromkeys(("ids", "counts"), "*i32"),
    **dict.fromkeys(_UNSPECIALIZED, "i32"),
}
_PLAIN = dict.fromkeys(("edges", "table", "stamp"))
VARIANTS = (
    Variant("exclude", _exclude, _TYPES, {**_PLAIN, "BLOCK": _ROWS}),
    Variant("exclude, marked", _exclude, _TYPES, {"edges": None, "BLOCK": _ROWS}),
    Variant("exclude, everything", _exclude, {**_TYPES, "ids": "*i64"}, {"BLOCK": _ROWS}),
)
