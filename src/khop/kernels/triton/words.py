"""Device functions of draws: random words, their reduction to a range, binary search, and picks of a row.

docs/randomness.md specifies the words. Picks count edges from the row's first one, in the order of the draws.
A few picks are a tuple of registers, int32 (rows) each, with a thread per row. Larger numbers are a tile,
int32 (rows, K). Free entries are -1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from khop.kernels.triton.rows import entry_at

WIDE_DEGREE = tl.constexpr(1 << 20)  # rows of at least this degree use 64-bit draws
_WEYL = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def mix64(value: tl.tensor) -> tl.tensor:
    """Apply SplitMix64's output function to uint64 values."""
    value = value + tl.full([], _WEYL, tl.uint64)
    value = (value ^ (value >> 30)) * tl.full([], _FIRST_FACTOR, tl.uint64)
    value = (value ^ (value >> 27)) * tl.full([], _SECOND_FACTOR, tl.uint64)
    return value ^ (value >> 31)


@triton.jit
def row_keys(key: tl.tensor, trees: tl.tensor, rows: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return the key of each row, uint64: the batch's key, mixed with the row's tree if there are trees."""
    keys = tl.load(key + rows * 0).to(tl.uint64, bitcast=True)
    if trees is not None:
        tree = tl.load(trees + rows, mask=live, other=0).to(tl.uint64, bitcast=True)
        keys = mix64(keys ^ mix64(tree))
    return keys


@triton.jit
def four_words(keys: tl.tensor, ids: tl.tensor, stream: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Return four uint32 words of each row: those of one counter block. `keys` and `ids` are uint64."""
    zero = (ids & 0).to(tl.uint32)
    return tl.philox_impl(
        ids.to(tl.uint32),
        (ids >> 32).to(tl.uint32),
        zero + stream.to(tl.uint32, bitcast=True),
        zero + block,
        keys.to(tl.uint32),
        (keys >> 32).to(tl.uint32),
    )


@triton.jit
def narrow_draw(
    keys: tl.tensor, ids: tl.tensor, stream: tl.tensor, number: tl.tensor, bound: tl.tensor
) -> tl.tensor:
    """Return 32-bit draw `number`, int32 (rows), reduced to [0, bound), for bounds up to 2^20."""
    w0, w1, w2, w3 = four_words(keys, ids, stream, (number >> 2).to(tl.uint32))
    place = number & 3
    word = tl.where(place == 0, w0, tl.where(place == 1, w1, tl.where(place == 2, w2, w3)))
    return tl.umulhi(word, bound.to(tl.uint32)).to(tl.int64)


@triton.jit
def wide_draw(
    keys: tl.tensor, ids: tl.tensor, stream: tl.tensor, number: tl.tensor, bound: tl.tensor
) -> tl.tensor:
    """Return 64-bit draw `number`, int32 (rows), reduced to [0, bound), bounds being int64."""
    w0, w1, w2, w3 = four_words(keys, ids, stream, (number >> 1).to(tl.uint32))
    is_odd = (number & 1) == 1
    return reduce_wide(tl.where(is_odd, w2, w0), tl.where(is_odd, w3, w1), bound)


@triton.jit
def reduce_wide(low: tl.tensor, high: tl.tensor, bound: tl.tensor) -> tl.tensor:
    """Reduce 64-bit draws, given as two words, to [0, bound)."""
    draw = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
    return tl.umulhi(draw, bound.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)


@triton.jit
def draw_below(
    keys: tl.tensor,
    ids: tl.tensor,
    stream: tl.tensor,
    number: tl.tensor,
    bound: tl.tensor,
    degree: tl.tensor,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """Return draw `number` of rows of a degree, below `bound`. Without WIDE, no degree needs 64 bits."""
    drawn = narrow_draw(keys, ids, stream, number, bound)
    if WIDE:
        drawn = tl.where(degree < WIDE_DEGREE, drawn, wide_draw(keys, ids, stream, number, bound))
    return drawn


@triton.jit
def first_above(
    values: tl.tensor,
    layout: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    bound: tl.tensor,
    live: tl.tensor,
) -> tl.tensor:
    """Return the first position above `bound` in each range [begin, end) of nondecreasing values.

    `layout` is None, or that of divided values: see `entry_at`.
    """
    low = tl.where(live, begin, 0)
    high = tl.where(live, end, 0)
    while tl.max((low < high).to(tl.int32), 0) > 0:
        is_open = low < high
        middle = (low + high) >> 1
        is_above = tl.load(entry_at(values, layout, middle, is_open), mask=is_open, other=0) > bound
        high = tl.where(is_open & is_above, middle, high)
        low = tl.where(is_open & (is_above == 0), middle + 1, low)
    return low


NO_PICK = tl.constexpr((1 << 31) - 1)  # after all edges of a row


@triton.jit
def no_picks(K: tl.constexpr, TILED: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Return K free places for each of BLOCK rows."""
    if TILED:
        picks = tl.full([BLOCK, K], -1, tl.int32)
    else:
        picks = ()
        for _ in tl.static_range(K):
            picks = picks + (tl.full([BLOCK], -1, tl.int32),)  # noqa: RUF005
    return picks


@triton.jit
def is_picked(picks: tl.tensor, pick: tl.tensor, K: tl.constexpr, TILED: tl.constexpr) -> tl.tensor:
    """Return True for each row that already has a pick."""
    if TILED:
        found = tl.max((picks == pick[:, None]).to(tl.int32), 1) > 0
    else:
        found = picks[0] == pick
        for i in tl.static_range(1, K):
            found = found | (picks[i] == pick)
    return found


@triton.jit
def with_pick(
    picks: tl.tensor,
    pick: tl.tensor,
    place: tl.tensor,
    live: tl.tensor,
    K: tl.constexpr,
    TILED: tl.constexpr,
) -> tl.tensor:
    """Return the picks with another one at a place in each live row."""
    if TILED:
        here = (tl.arange(0, K)[None, :] == place[:, None]) & live[:, None]
        more = tl.where(here, pick[:, None], picks)
    else:
        more = ()
        for i in tl.static_range(K):
            more = more + (tl.where(live & (place == i), pick, picks[i]),)  # noqa: RUF005
    return more


@triton.jit
def next_pick(picks: tl.tensor, last: tl.tensor, K: tl.constexpr, TILED: tl.constexpr) -> tl.tensor:
    """Return the smallest pick of each row above `last`, or NO_PICK."""
    if TILED:
        least = tl.min(tl.where(picks > last[:, None], picks, NO_PICK), 1)
    else:
        least = last * 0 + NO_PICK
        for i in tl.static_range(K):
            least = tl.where((picks[i] > last) & (picks[i] < least), picks[i], least)
    return least


@triton.jit
def edge_weight(
    sums: tl.tensor, layout: tl.tensor, edge: tl.tensor, first: tl.tensor, live: tl.tensor
) -> tl.tensor:
    """Return the weight of each edge, int64, and the sum of the row's weights before it.

    `first` is the row's first edge.
    """
    is_later = live & (edge > first)
    before = tl.load(entry_at(sums, layout, edge - 1, is_later), mask=is_later, other=0)
    return tl.load(entry_at(sums, layout, edge, live), mask=live, other=0) - before, before


@triton.jit
def weight_of_picks(
    picks: tl.tensor,
    sums: tl.tensor,
    layout: tl.tensor,
    begin: tl.tensor,
    first: tl.tensor,
    live: tl.tensor,
    K: tl.constexpr,
    TILED: tl.constexpr,
) -> tl.tensor:
    """Return the weight of all picks of each live row, int64. Picks count from `begin`."""
    if TILED:
        is_pick = (picks >= 0) & live[:, None]
        weight, _ = edge_weight(sums, layout, begin[:, None] + picks, first[:, None], is_pick)
        total = tl.sum(weight, 1)
    else:
        total = begin * 0
        for i in tl.static_range(K):
            weight, _ = edge_weight(sums, layout, begin + picks[i], first, live & (picks[i] >= 0))
            total += weight
    return total
