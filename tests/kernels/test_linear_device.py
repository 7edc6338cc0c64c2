"""A layer's products on a device have the values and gradients of torch's own operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.linear import linear_sum
from khop.kernels.linear_blocks import Activation
from support.triton_rows import DEVICE
from support.triton_segments import by_triton


def operands(count: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], Tensor]:
    torch.manual_seed(count)
    widths = [5, 8, 3][:count]
    inputs = [torch.randn(17, width, dtype=dtype).to(DEVICE).requires_grad_() for width in widths]
    weights = [torch.randn(6, width, dtype=dtype).to(DEVICE).requires_grad_() for width in widths]
    return inputs, weights, torch.randn(6, dtype=dtype).to(DEVICE).requires_grad_()


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_values_and_gradients_are_those_of_torch(count: int, activation: Activation) -> None:
    inputs, weights, bias = operands(count, torch.float64)
    total = sum((F.linear(x, w) for x, w in zip(inputs, weights, strict=True)), start=bias)
    expected = total.relu() if activation == "relu" else total
    leaves = [*inputs, *weights, bias]
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, gradient)
    with by_triton():
        found = linear_sum(inputs, weights, bias, None, activation)
        made = torch.autograd.grad(found, leaves, gradient)
    for a, b in zip([found, *made], [expected, *wanted], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_an_input_without_gradient_gets_none() -> None:
    inputs, weights, bias = operands(2, torch.float64)
    x = inputs[0].detach()
    with by_triton():
        torch.autograd.backward(linear_sum([x, inputs[1]], weights, bias, None, "relu").sum())
    assert x.grad is None
    assert inputs[1].grad is not None


def test_autocast_computes_in_its_dtype_and_gives_gradients_in_that_of_the_parameters() -> None:
    inputs, weights, bias = operands(2, torch.float32)
    with by_triton(), torch.autocast(DEVICE.type, torch.bfloat16):
        out = linear_sum(inputs, weights, bias, None, "relu")
    assert out.dtype == torch.bfloat16
    with by_triton():
        torch.autograd.backward(out.float().sum())
    assert {tensor.grad.dtype for tensor in (*inputs, *weights, bias)} == {torch.float32}
