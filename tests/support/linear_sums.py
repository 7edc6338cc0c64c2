"""Sums of products as layers make them, and the same by torch."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.kernels.linear_blocks import Activation

BLOCK = 512  # rows of each thread


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def summed(given: list[Tensor], has_addend: bool, activation: Activation) -> Tensor:
    """The reference: bias, addend, inputs, weights."""
    bias, addend, *operands = given
    count = len(operands) // 2
    pairs = zip(operands[:count], operands[count:], strict=True)
    out = sum((x @ weight.T for x, weight in pairs), bias.repeat(addend.shape[0], 1))
    out = out + addend if has_addend else out
    return out.relu() if activation == "relu" else out


def operands_of(rows: int, count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    inputs = [numbers(rows, 10 + n, seed=n) for n in range(count)]
    weights = [numbers(16, 10 + n, seed=3 + n) for n in range(count)]
    given = [numbers(16, seed=8), numbers(rows, 16, seed=9), *inputs, *weights]
    return [tensor.to(dtype) for tensor in given]
