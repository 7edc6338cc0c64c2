"""Edge weights as integers, and their running sums in each row, for the search of a weighted draw."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.csc import Csc, naming_damage
from khop.kernels.memory import pooled

_EXACT_IN_FLOAT = (torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.uint8, torch.bool)


def weight_sums(csc: Csc, weights: Tensor, *, threads: int = 1) -> Tensor:
    """Return for each edge the sum of the row's integer weights up to and including it, int64 (edges).

    The largest weight of a row is scaled to a 32-bit number. The others are scaled equally, rounded down,
    and at least 1 unless they are 0: see docs/randomness.md for the bits. ValueError names a weight that is
    negative or not finite, with its position.
    """
    if weights.shape != (csc.num_edges,) or weights.device != csc.indptr.device:
        given = f"weights are {weights.dtype} {tuple(weights.shape)} on {weights.device}"
        raise ValueError(f"{given}: must be numbers ({csc.num_edges}) on {csc.indptr.device}")
    if weights.dtype not in (torch.float32, torch.float64):
        weights = weights.float() if weights.dtype in _EXACT_IN_FLOAT else weights.double()
    if csc.indptr.device.type == "cpu":
        sums = pooled((csc.num_edges,), torch.int64)
        with naming_damage(csc.home):
            position = _core.weight_sums(csc.indptr, weights.contiguous(), sums, threads)
    else:
        sums, position = weight_sums_reference(csc, weights)
    if position >= 0:
        raise ValueError(
            f"weight {float(weights[position])} at position {position}: must be a finite number, 0 or more; "
            "correct the column and write the graph again"
        )
    return sums


def weight_sums_reference(csc: Csc, weights: Tensor) -> tuple[Tensor, int]:
    """The same as `weight_sums` in NumPy, with the position of the first bad weight, or -1."""
    numbers = weights.double().cpu().numpy()
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if bad.size:
        return torch.empty(0), int(bad[0])
    ends = csc.indptr.cpu().numpy()
    sums = np.zeros(numbers.size, np.int64)
    for begin, end in pairwise(ends):
        row = numbers[begin:end]
        _, exponent = np.frexp(row.max(initial=0))
        whole = np.floor(np.ldexp(row, 32 - exponent)).astype(np.int64)
        sums[begin:end] = np.cumsum(np.where(row > 0, np.maximum(whole, 1), 0))
    return torch.from_numpy(sums).to(csc.indptr.device), -1
