"""Mixing of words, such that each bit of the result depends on every bit of the word."""

from __future__ import annotations

from torch import Tensor

_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64 (Steele, Lea, Flood 2014)


def mixed(words: Tensor) -> Tensor:
    """Return int64, shaped as `words`: a permutation of all words, the final step of SplitMix64."""
    for shift, factor in _ROUNDS:
        words = (words ^ (words >> shift & (1 << 64 - shift) - 1)) * signed(factor)
    return words ^ (words >> 31 & (1 << 33) - 1)


def signed(word: int) -> int:
    """Return the int64 with the bits of a word from 0 to below 2^64."""
    return word - (1 << 64) if word >> 63 else word
