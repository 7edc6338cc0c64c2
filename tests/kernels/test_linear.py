"""The product with a layer's rows equals torch's own, forward and backward, by whichever library it goes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels import linear as module
from khop.kernels.linear import FEW_ROWS, ROWS_AT_ONCE, linear


@pytest.fixture(params=[False, True], ids=["mkl", "onednn"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each of the two libraries, whatever this processor would choose."""
    monkeypatch.setattr(module, "onednn_is_faster", lambda: request.param)
    return bool(request.param)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [0, 1, FEW_ROWS - 1, FEW_ROWS, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE])
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_are_those_of_torch_in_double_precision(
    library: bool, rows: int, has_bias: bool
) -> None:
    given = [numbers(rows, 33, seed=1), numbers(17, 33, seed=2), numbers(17, seed=3)][: 3 if has_bias else 2]
    gradient = numbers(rows, 17, seed=4)
    found = [tensor.clone().requires_grad_() for tensor in given]
    expected = [tensor.double().requires_grad_() for tensor in given]
    out, reference = linear(*found), F.linear(*expected)
    out.backward(gradient)
    reference.backward(gradient.double())
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-4)
    for own, other in zip(found, expected, strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=1e-4, atol=1e-2)


def test_large_products_go_to_onednn_where_it_is_faster_and_only_then(library: bool) -> None:
    out = linear(numbers(FEW_ROWS, 8), numbers(4, 8).requires_grad_())
    assert out.grad_fn is not None
    assert ("OneDnn" in out.grad_fn.name()) is library
    few = linear(numbers(FEW_ROWS - 1, 8), numbers(4, 8).requires_grad_())
    assert few.grad_fn is not None
    assert "OneDnn" not in few.grad_fn.name()


def test_no_gradient_is_made_for_an_input_that_needs_none(library: bool) -> None:
    x, weight = numbers(FEW_ROWS, 8), numbers(4, 8).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_rows_that_are_not_contiguous_are_taken(library: bool) -> None:
    x, weight = numbers(8, FEW_ROWS).t(), numbers(8, 4).t()
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_torchs_own_bit_for_bit(library: bool, dtype: torch.dtype) -> None:
    x, weight = numbers(FEW_ROWS, 8).to(dtype), numbers(4, 8).to(dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_autocast_still_decides_the_dtype(library: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(numbers(FEW_ROWS, 8), numbers(4, 8)).dtype == torch.bfloat16
