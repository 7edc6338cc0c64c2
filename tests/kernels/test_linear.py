"""The product with a layer's rows equals torch's own, forward and backward, by whichever library it goes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels import linear as module
from khop.kernels.linear import FEW_ROWS, ROWS_AT_ONCE, Activation, linear, linear_sum


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


@pytest.mark.parametrize("rows", [0, FEW_ROWS - 1, 2 * ROWS_AT_ONCE + 7])
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_addend", [False, True])
def test_a_sum_of_products_and_its_gradients_are_those_of_its_terms(
    library: bool, rows: int, count: int, activation: Activation, has_addend: bool
) -> None:
    if count == 0 and not has_addend:
        return
    bias, addend = numbers(16, seed=8), numbers(rows, 16, seed=9)
    inputs = [numbers(rows, 10 + n, seed=n) for n in range(count)]
    weights = [numbers(16, 10 + n, seed=3 + n) for n in range(count)]

    def summed(given: list[Tensor]) -> Tensor:
        own_bias, own_addend, *operands = given
        pairs = zip(operands[:count], operands[count:], strict=True)
        out = sum((x @ weight.T for x, weight in pairs), own_bias.repeat(rows, 1))
        out = out + own_addend if has_addend else out
        return out.relu() if activation == "relu" else out

    found = [t.clone().requires_grad_() for t in (bias, addend, *inputs, *weights)]
    exact = [t.double().requires_grad_() for t in (bias, addend, *inputs, *weights)]
    operands = found[2:]
    out = linear_sum(
        operands[:count], operands[count:], found[0], found[1] if has_addend else None, activation
    )
    reference = summed(exact)
    pull = numbers(rows, 16, seed=4)
    # Where rounding decides on which side of 0 a sum is, either gradient is right.
    pull[(reference.abs() < 1e-4).any(1)] = 0
    out.backward(pull)
    reference.backward(pull.double())
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-4)
    for own, other in zip(found, exact, strict=True):
        if other.grad is not None:
            assert own.grad is not None
            torch.testing.assert_close(own.grad.double(), other.grad, rtol=1e-4, atol=1e-2)


def test_what_is_added_is_left_as_it_was(library: bool) -> None:
    for rows in (4, FEW_ROWS):
        x, addend = numbers(rows, 8), numbers(rows, 4, seed=1)
        linear_sum([x], [numbers(4, 8)], None, addend, "relu")
        linear_sum([], [], None, addend, "relu")
        assert torch.equal(addend, numbers(rows, 4, seed=1))


def test_only_the_inputs_that_need_a_gradient_have_one(library: bool) -> None:
    inputs = [numbers(FEW_ROWS, 8), numbers(FEW_ROWS, 5, seed=1).requires_grad_()]
    weights = [numbers(4, 8, seed=2), numbers(4, 5, seed=3)]
    linear_sum(inputs, weights).sum().backward()
    assert inputs[0].grad is None
    torch.testing.assert_close(inputs[1].grad, weights[1].sum(0).expand(FEW_ROWS, -1))


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
