"""Sums over the programs of a launch."""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = tl.constexpr(1024)  # entries that are added at once


@triton.jit
def sum_before(sums: tl.tensor, place: tl.tensor) -> tl.tensor:
    """Return the sum of the entries of `sums` before a place, int64.

    Each program adds the sums of all programs before it, which an earlier launch has written. So no program
    waits for another one.
    """
    total = tl.zeros([CHUNK], tl.int64)
    for begin in range(0, place, CHUNK):
        at = begin + tl.arange(0, CHUNK)
        total += tl.load(sums + at, mask=at < place, other=0)
    return tl.sum(total, 0)
