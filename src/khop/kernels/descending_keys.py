"""Integers that sort values from the largest to the smallest."""

from __future__ import annotations

import torch
from torch import Tensor

_MAGNITUDE = (1 << 63) - 1
_AT_ONCE = 1 << 22  # values in memory as float64


def descending_keys(values: Tensor) -> Tensor:
    """Return int64 numbers, smaller for a larger value and equal for equal values.

    Integers and floating-point numbers are compared exactly. ValueError names a value that is no number.
    """
    keys = torch.empty(values.shape, dtype=torch.int64, device=values.device)
    for start in range(0, values.numel(), _AT_ONCE):
        keys[start : start + _AT_ONCE] = _keys(values[start : start + _AT_ONCE], start)
    return keys


def _keys(values: Tensor, start: int) -> Tensor:
    if not values.is_floating_point():
        return ~values.long()
    numbers = values.double() + 0.0  # of the two zeros, the positive one
    wrong = numbers.isnan().nonzero()
    if wrong.numel():
        raise ValueError(
            f"nan at position {start + int(wrong[0, 0])}: must be a number; correct the column and write the "
            "graph again"
        )
    bits = numbers.view(torch.int64)
    return ~torch.where(bits < 0, bits ^ _MAGNITUDE, bits)
