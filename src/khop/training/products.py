"""Precision of products of float32 matrices on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from khop.training.settings import Precision


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Compute products in TF32 while the block runs, if the precision is "tf32", else as torch is set.

    TF32 has the range of float32 and the 10 bits of float16; sums are float32.
    """
    before = torch.get_float32_matmul_precision()
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
