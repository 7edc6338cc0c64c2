"""Device functions for the picks of rows: edges counted from the row's first one, in the order of the draws.

Few picks are a tuple of registers, int32 (rows) each, with a thread per row. More are a tile, int32
(rows, K). Free places are -1.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_PICK = tl.constexpr((1 << 31) - 1)  # behind all edges of a row


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
    """Return for each row if it has a pick already."""
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
    """Return the picks with another one at a place of each live row."""
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
def edge_weight(sums: tl.tensor, edge: tl.tensor, first: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return the weight of each edge, int64, and the sum of the row's weights before it.

    `first` is the row's first edge.
    """
    before = tl.load(sums + edge - 1, mask=live & (edge > first), other=0)
    return tl.load(sums + edge, mask=live, other=0) - before, before


@triton.jit
def weight_of_picks(
    picks: tl.tensor,
    sums: tl.tensor,
    begin: tl.tensor,
    first: tl.tensor,
    live: tl.tensor,
    K: tl.constexpr,
    TILED: tl.constexpr,
) -> tl.tensor:
    """Return the weight of all picks of each live row, int64. Picks count from `begin`."""
    if TILED:
        is_pick = (picks >= 0) & live[:, None]
        weight, _ = edge_weight(sums, begin[:, None] + picks, first[:, None], is_pick)
        total = tl.sum(weight, 1)
    else:
        total = begin * 0
        for i in tl.static_range(K):
            weight, _ = edge_weight(sums, begin + picks[i], first, live & (picks[i] >= 0))
            total += weight
    return total
