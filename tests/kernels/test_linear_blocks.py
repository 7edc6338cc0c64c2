"""Sums of products in blocks of rows: exact in float64, and only for dtypes that the library has."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from khop.kernels.linear_blocks import Activation, Blocks, linear_sum_blocks
from support.linear_sums import BLOCK, numbers, operands_of, summed


@pytest.mark.parametrize("rows", [0, 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_addend", [False, True])
def test_blocks_in_float64_are_exact(rows: int, activation: Activation, has_addend: bool) -> None:
    given = operands_of(rows, 2, torch.float64)
    found, exact = ([tensor.clone().requires_grad_() for tensor in given] for _ in range(2))
    addend = found[1] if has_addend else None
    way = Blocks("blas", BLOCK)
    out = linear_sum_blocks(way, torch.float64, found[2:4], found[4:], found[0], addend, activation)
    reference = summed(exact, has_addend, activation)
    pull = numbers(rows, 16, seed=4).double()
    out.backward(pull)
    reference.backward(pull)
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-10)
    close(out, reference)
    for own, other in zip(found, exact, strict=True):
        close(own.grad, other.grad)


def test_a_library_computes_the_dtypes_that_it_has() -> None:
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    assert [Blocks("blas", 64).can_compute(dtype) for dtype in (half, single, double)] == [True] * 3
    assert not Blocks("onednn", 64).can_compute(double)
    assert Blocks("blas", 64, in_float32=True).can_compute(half)
    assert not Blocks("blas", 64, in_float32=True).can_compute(single)
    assert Blocks("blas", 64, in_float32=True).product_dtype(half) == single
