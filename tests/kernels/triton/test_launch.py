"""Launches: the same kernel again, with other types, alignments and numbers."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from khop.kernels.triton.launch import launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def add(
    x: tl.tensor,
    more: tl.tensor,
    out: tl.tensor,
    number: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0) + number
    if more is not None:
        value += tl.load(more + at, mask=at < size, other=0)
    tl.store(out + at, value, mask=at < size)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("number", [0, 1, 3, 16, 1 << 20])
def test_each_launch_has_the_kernel_of_its_operands(dtype: torch.dtype, shift: int, number: int) -> None:
    x = torch.arange(200, device=DEVICE).to(dtype)[shift:]
    for more in (None, x, x.clone()):
        for _ in range(2):  # compiled, and known
            out = torch.full_like(x, -1)
            launch(add, triton.cdiv(x.numel(), 64), x, x, more, out, number, x.numel(), BLOCK=64)
            assert torch.equal(out, x + number if more is None else x + number + more)


def test_no_program_is_no_launch() -> None:
    x = torch.empty(0, device=DEVICE)
    launch(add, 0, x, x, None, x, 1, 0, BLOCK=64)
