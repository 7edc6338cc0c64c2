"""Gradients of relu and bias on a device: the masked rows bit for bit, their sums up to rounding."""

from __future__ import annotations

import pytest
import torch

from khop.kernels.triton.relu_gradient import relu_and_bias_gradient
from support.triton_rows import DEVICE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (129, 100), (300, 257), (0, 5)])
@pytest.mark.parametrize("relu", [True, False])
def test_the_gradient_is_that_of_torch(shape: tuple[int, int], dtype: torch.dtype, relu: bool) -> None:
    torch.manual_seed(1)
    gradient = torch.randn(shape).to(DEVICE, dtype)
    result = torch.randn(shape).relu().to(DEVICE, dtype) if relu else None
    masked, sums = relu_and_bias_gradient(gradient, result)
    expected = gradient if result is None else torch.ops.aten.threshold_backward(gradient, result, 0)
    assert torch.equal(masked, expected)
    torch.testing.assert_close(sums.double(), expected.double().sum(0), rtol=1e-5, atol=1e-5)
    assert sums.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_result_that_is_not_a_number_passes_its_gradient_as_torch_does() -> None:
    gradient, result = torch.ones(2, 3, device=DEVICE), torch.full((2, 3), torch.nan, device=DEVICE)
    assert torch.equal(relu_and_bias_gradient(gradient, result)[0], gradient)
