"""Digests of link lists, also for lists that are partitioned across processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from khop.kernels.mix import mixed, signed
from khop.schema import EdgeType

_AT_ONCE = 1 << 18  # links
_FACTOR = signed(0x9E3779B97F4A7C15)  # odd


def links_digest(first: int, facts: Sequence[Tensor]) -> int:
    """Return the sum over links of a 64-bit hash of each link's number, ends and columns, modulo 2^64.

    `facts` have one row per link; the link in row 0 has the number `first`. The digests of consecutive
    ranges of a list add up to the digest of the list.
    """
    total, count = 0, facts[0].shape[0]
    for start in range(0, count, _AT_ONCE):
        end = min(start + _AT_ONCE, count)
        words = torch.arange(first + start, first + end)
        for fact in facts:
            if fact.numel():
                for column in _words(fact[start:end]).unbind(1):
                    words = mixed(words * _FACTOR + column)
        total += int(words.sum())
    return total & (1 << 64) - 1


def told_apart(
    edge_type: EdgeType, count: int, facts: Mapping[str, tuple[torch.dtype, Sequence[int]]]
) -> bytes:
    """Return a list's metadata as bytes to hash: edge type, count, and each fact's dtype and row shape."""
    described = [f"{what}:{dtype}:{list(shape)}" for what, (dtype, shape) in facts.items()]
    return f"{edge_type}:{count}:{described}:".encode()


def _words(fact: Tensor) -> Tensor:
    """Return int64 (links, words): the bytes of every row, padded with zeros."""
    rows = fact.reshape(fact.shape[0], -1).contiguous().view(torch.uint8)
    filled = rows.new_zeros(rows.shape[0], -(-rows.shape[1] // 8) * 8)
    filled[:, : rows.shape[1]] = rows
    return filled.view(torch.int64)
