"""relu in place has the bits of torch's, forward and backward."""

from __future__ import annotations

import pytest
import torch

from khop.kernels.relu import relu_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (37, 5)])
def test_values_and_gradients_are_torchs_bit_for_bit(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, pull = (torch.randn(*shape, generator=generator).to(dtype) for _ in range(2))
    x[:1] = 0
    found, expected = (x.clone().requires_grad_() for _ in range(2))
    out, reference = relu_(found * 1), (expected * 1).relu_()
    out.backward(pull)
    reference.backward(pull)
    assert torch.equal(out, reference)
    assert found.grad is not None
    assert expected.grad is not None
    assert torch.equal(found.grad, expected.grad)


def test_it_works_in_place() -> None:
    x = torch.tensor([[-1.0, 2.0]])
    assert relu_(x).data_ptr() == x.data_ptr()
    assert x.tolist() == [[0.0, 2.0]]
