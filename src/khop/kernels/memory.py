"""Memory for results, and advice on memory that is read."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import khop._core as _core


def pooled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new tensor in main memory whose contents are whatever they are.

    Its block comes from the core's pool and goes back when the tensor dies. Blocks of earlier batches cost
    nothing, where new memory costs more page faults than filling it does.
    """
    block = _core.pooled_bytes(math.prod(shape) * dtype.itemsize)
    # Not block.view(dtype): a view would refuse to be changed in place once gradients flow through it.
    return torch.empty(0, dtype=dtype).set_(block.untyped_storage()).resize_(shape)


def expect_random_access(tensor: Tensor) -> None:
    """Prepare a large contiguous tensor in main memory for random reads: 1.2 to 1.7 times as fast.

    Asks for huge pages and, for a mapped file of less than a quarter of the machine's memory, lets it be read
    in the background. Call it before the first access; it returns at once. Contents do not change.
    """
    _core.expect_random_access(tensor.detach().view(-1).view(torch.uint8))
