"""Philox4x32-10, the counter-based generator of every draw, and functions of its words.

docs/randomness.md specifies the bits. Words are unsigned 32-bit numbers stored in int64.

`permutation_slice(key, count, start, stop)` returns entries [start, stop) of a keyed permutation of [0,
count), int64, for shuffling. It is a pure function. Time and memory depend only on the slice, so every rank
computes its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import khop._core as _core
from khop._core import permutation_slice as permutation_slice
from khop.draw import DrawKey, mix64

WORD = 0xFFFFFFFF
WIDE_DEGREE = 1 << 20  # rows of at least this degree use 64-bit draws


def philox(key: int, counters: Tensor) -> Tensor:
    """Return the four words of each counter: int64 (n, 4) for int64 (n, 4), with a 64-bit key."""
    if counters.dtype != torch.int64 or counters.dim() != 2 or counters.shape[1] != 4:
        raise ValueError(f"counters are {counters.dtype} {tuple(counters.shape)}: must be int64 (n, 4)")
    if counters.device.type == "cpu":
        return _core.philox(key, counters.contiguous())
    keys = torch.tensor([key & WORD, key >> 32], device=counters.device)
    return philox_reference(keys.expand(counters.shape[0], 2), counters)


def philox_reference(keys: Tensor, counters: Tensor) -> Tensor:
    """The same as `philox` in plain torch, on any device, with a key (two words, int64 (n, 2)) per counter.

    A key is its low and its high word.
    """
    low, high = keys.unbind(1)
    c0, c1, c2, c3 = (counters & WORD).unbind(1)
    for _ in range(10):
        high0, low0 = multiply_words(c0, 0xD2511F53)
        high2, low2 = multiply_words(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high2 ^ c1 ^ low, low2, high0 ^ c3 ^ high, low0
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return torch.stack([c0, c1, c2, c3], dim=1)


def multiply_words(a: Tensor, b: Tensor | int) -> tuple[Tensor, Tensor]:
    """Return high and low words of the 64-bit products of words, within the positive half of int64."""
    high = (a * (b >> 16) + (a * (b & 0xFFFF) >> 16)) >> 16
    return high, (a * b) & WORD


def reduce_words(words: Tensor, bound: Tensor) -> Tensor:
    """Reduce words to [0, bound), for bounds below 2^32: the high word of the product."""
    return multiply_words(words, bound)[0]


def reduce_wide(low: Tensor, high: Tensor, bound: Tensor) -> Tensor:
    """Reduce 64-bit draws, given as words, to [0, bound) below 2^63: the high half of the 128-bit product."""
    bound_low, bound_high = bound & WORD, bound >> 32
    carry = multiply_words(low, bound_low)[0]
    middle_high, middle_low = multiply_words(low, bound_high)
    other_high, other_low = multiply_words(high, bound_low)
    carry = (carry + middle_low + other_low) >> 32
    top_high, top_low = multiply_words(high, bound_high)
    return (top_high << 32) + top_low + middle_high + other_high + carry


def mix64_reference(values: Tensor) -> Tensor:
    """`khop.draw.mix64` for 64-bit patterns in int64; products wrap as required."""
    values = values + signed(0x9E3779B97F4A7C15)
    values = (values ^ _shifted(values, 30)) * signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shifted(values, 27)) * signed(0x94D049BB133111EB)
    return values ^ _shifted(values, 31)


def signed(pattern: int) -> int:
    """Return the int64 with a 64-bit pattern."""
    return pattern - (1 << 64) if pattern >> 63 else pattern


def _shifted(values: Tensor, bits: int) -> Tensor:
    return (values >> bits) & ((1 << (64 - bits)) - 1)


_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64 (Steele, Lea, Flood 2014)


def mixed(words: Tensor) -> Tensor:
    """Return int64, shaped as `words`: a permutation of all words, the final step of SplitMix64."""
    for shift, factor in _ROUNDS:
        words = (words ^ (words >> shift & (1 << 64 - shift) - 1)) * signed(factor)
    return words ^ (words >> 31 & (1 << 33) - 1)


@dataclass(frozen=True)
class SourceNumbers:
    """Random numbers of source nodes as sort keys of their edges, specified in docs/randomness.md.

    With a period above 1, a node keeps its number for `period` steps, a generation. Generations of nodes
    start at different steps.
    """

    base: int  # of the generation of most nodes
    later_base: int  # of the next generation
    period: int
    later_from: int  # offset within the period from which nodes are in the next generation

    @classmethod
    def of(cls, key: DrawKey, stream: int, period: int = 1) -> SourceNumbers:
        """Return the numbers of a stream in the step of a key."""
        generation = key.step // period
        base, later = (mix64(key.at_step(at).value ^ mix64(stream)) for at in (generation, generation + 1))
        return cls(base, later, period, period - key.step % period)

    def keys(self, ids: Tensor) -> Tensor:
        """Return the 64-bit numbers of nodes, as int64 patterns, for int64 original ids."""
        base = torch.full_like(ids, signed(self.base))
        if self.period > 1:
            offsets = reduce_words(mix64_reference(ids) >> 32 & WORD, torch.full_like(ids, self.period))
            base = torch.where(offsets >= self.later_from, signed(self.later_base), base)
        return mix64_reference(base ^ ids)


def digest(tensor: Tensor, *, threads: int = 1) -> str:
    """Return 16 hexadecimal digits for a contiguous tensor in main memory, with any number of threads.

    The digest is the XXH64 of the XXH64 of each MiB: see docs/graph-folder.md. Several GB/s per thread.
    """
    return f"{_core.digest(tensor.detach().view(-1).view(torch.uint8), threads):016x}"
