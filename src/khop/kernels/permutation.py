"""A keyed permutation of [0, count) without memory, for shuffling epochs."""

from __future__ import annotations

from torch import Tensor

import khop._core as _core
from khop.draw import DrawKey


def permutation_slice(key: DrawKey, count: int, start: int, stop: int) -> Tensor:
    """Return entries [start, stop) of a permutation of [0, count), int64: a pure function of key and count.

    Time and memory depend on the slice alone, so every rank computes its own share. On the CPU.
    """
    if not 0 <= start <= stop <= count < 1 << 63:
        raise ValueError(
            f"slice [{start}, {stop}) of a permutation of {count}: must be within it and below 2^63"
        )
    return _core.permutation_slice(key.value, count, start, stop)
