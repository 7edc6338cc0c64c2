"""A minimal kernel, to check that Triton can build and launch kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from khop.kernels.triton.launch import Variant, launch

COUNT = 64


@triton.jit
def copy_numbers(values: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Copy int64 numbers."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(values + at))


def try_kernel(device: torch.device) -> None:
    """Build and launch the kernel; RuntimeError if it does not copy. Triton may raise other errors."""
    values = torch.arange(COUNT, device=device)
    out = torch.zeros_like(values)
    launch(copy_numbers, 1, out, values, out, BLOCK=COUNT)
    if not torch.equal(out, values):
        raise RuntimeError("a kernel that copies numbers returned other numbers")


VARIANTS = (
    Variant("copy numbers", copy_numbers, {"values": "*i64", "out": "*i64"}, {"BLOCK": COUNT}, vector_bits=0),
)
