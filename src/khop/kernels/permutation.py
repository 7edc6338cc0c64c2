"""A keyed permutation of [0, count) without memory, for shuffling epochs: an operation of the core as it is.

`permutation_slice(key, count, start, stop)` returns entries [start, stop) of the permutation under a 64-bit
key, int64: a pure function. Time and memory depend on the slice alone, so every rank computes its own share.
"""

from __future__ import annotations

from khop._core import permutation_slice as permutation_slice
