"""Pairs of nodes with common neighbors, and their numbers of common neighbors."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.csc import Csc


def cooccurrences(there: Csc, back: Csc, min_count: int, *, threads: int = 1) -> tuple[Csc, Tensor]:
    """Count the ways between different rows of `there`; return the pairs with at least `min_count` of them.

    A way goes from a row to one of its entries, and from there to an entry of that entry's row in `back`;
    parallel edges are separate ways. Indices ascend within a row. The second value is the number of ways,
    int32 (pairs), at most 2^31 - 1. Besides the result it takes 8 bytes per row, and the same again per
    thread (16 above 2^31 rows).
    """
    if min_count < 1:
        raise ValueError(f"min_count {min_count}: must be at least 1")
    if there.indices.device.type != "cpu":
        return cooccurrences_reference(there, back, min_count)
    dtype = torch.promote_types(there.indices.dtype, back.indices.dtype)
    indptr, indices, counts = _core.cooccurrences(
        there.indptr, there.indices.to(dtype), back.indptr, back.indices.to(dtype), min_count, threads
    )
    return Csc(indptr, indices.to(back.indices.dtype)), counts


def cooccurrences_reference(there: Csc, back: Csc, min_count: int) -> tuple[Csc, Tensor]:
    """The same as `cooccurrences` in plain torch, on any device. Lists every way in memory."""
    rows = torch.repeat_interleave(there.indptr.diff())
    middles = there.indices.long()
    degrees = back.indptr.diff()[middles]
    ways = torch.repeat_interleave(degrees)  # the first step of each way
    offsets = torch.arange(ways.numel(), device=ways.device) - (degrees.cumsum(0) - degrees)[ways]
    ends = back.indices[back.indptr[middles[ways]] + offsets].long()
    pairs, counts = torch.unique(rows[ways] * there.num_rows + ends, return_counts=True)
    rows, ends = pairs // max(there.num_rows, 1), pairs % max(there.num_rows, 1)
    kept = (counts >= min_count) & (rows != ends)
    per_row = torch.bincount(rows[kept], minlength=there.num_rows)
    indptr = torch.cat([per_row.new_zeros(1), per_row.cumsum(0)])
    return Csc(indptr, ends[kept].to(back.indices.dtype)), counts[kept].int()
