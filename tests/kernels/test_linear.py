"""The sum of products of a layer equals torch's own, forward and backward, in every way to compute it.

A layer's products on a device have the values and gradients of torch's own operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.linear import linear, linear_sum
from khop.kernels.linear_blocks import Activation, Blocks
from khop.kernels.linear_choice import CHOICES, FEW_ROWS
from support.linear_sums import BLOCK, numbers, operands_of, summed
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

FLOAT_WAYS = [None, Blocks("blas", BLOCK), Blocks("onednn", BLOCK)]
HALF_WAYS = [None, Blocks("blas", BLOCK), Blocks("blas", BLOCK, True), Blocks("onednn", BLOCK, True)]


def name_of(way: Blocks | None) -> str:
    return "torch" if way is None else way.library + ("-float32" if way.in_float32 else "")


@pytest.fixture(params=FLOAT_WAYS, ids=name_of)
def way(request: pytest.FixtureRequest) -> Iterator[Blocks | None]:
    """Each way, whatever this processor would choose."""
    with CHOICES.fixed(request.param):
        yield request.param


@pytest.mark.parametrize("rows", [0, 1, FEW_ROWS - 1, FEW_ROWS, 2 * BLOCK + 1, 4 * BLOCK])
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_are_those_of_torch_in_double_precision(
    way: Blocks | None, rows: int, has_bias: bool
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


@pytest.mark.parametrize("rows", [0, FEW_ROWS - 1, 4 * BLOCK + 7])
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_addend", [False, True])
def test_a_sum_of_products_and_its_gradients_are_those_of_its_terms(
    way: Blocks | None, rows: int, count: int, activation: Activation, has_addend: bool
) -> None:
    if count == 0 and not has_addend:
        return
    given = operands_of(rows, count)
    found = [tensor.clone().requires_grad_() for tensor in given]
    exact = [tensor.double().requires_grad_() for tensor in given]
    operands = found[2:]
    addend = found[1] if has_addend else None
    out = linear_sum(operands[:count], operands[count:], found[0], addend, activation)
    reference = summed(exact, has_addend, activation)
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


@pytest.mark.parametrize("way", HALF_WAYS, ids=name_of)
@pytest.mark.parametrize("rows", [0, FEW_ROWS, 4 * BLOCK + 7])
@pytest.mark.parametrize("input_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_addend", [False, True])
def test_under_autocast_layers_are_those_of_rounded_rows_and_weights(
    way: Blocks | None, rows: int, input_dtype: torch.dtype, has_addend: bool
) -> None:
    """Within the rounding of bfloat16, gradients in the dtypes of their tensors."""
    given = operands_of(rows, 2)
    given = [t.bfloat16().to(input_dtype) if n in (2, 3) else t for n, t in enumerate(given)]
    given[1] = given[1].bfloat16()
    found = [tensor.clone().requires_grad_() for tensor in given]
    exact = [tensor.bfloat16().double().requires_grad_() for tensor in given]
    addend = found[1] if has_addend else None
    with CHOICES.fixed(way), torch.autocast("cpu", torch.bfloat16):
        out = linear_sum(found[2:4], found[4:], found[0], addend, "relu")
    assert out.dtype == torch.bfloat16
    reference = summed(exact, has_addend, "relu")
    pull = numbers(rows, 16, seed=4).bfloat16()
    pull[(reference.abs() < 0.1).any(1)] = 0
    out.backward(pull)
    reference.backward(pull.double())
    torch.testing.assert_close(out.double(), reference, rtol=2e-2, atol=0.15)
    for own, other in zip(found, exact, strict=True):
        if other.grad is not None:
            assert own.grad is not None
            assert own.grad.dtype == own.dtype
            limit = 2e-2 * float(other.grad.abs().max()) if rows else 0.0
            torch.testing.assert_close(own.grad.double(), other.grad, rtol=2e-2, atol=limit)


@pytest.mark.parametrize("way", HALF_WAYS, ids=name_of)
def test_a_model_in_bfloat16_stays_there(way: Blocks | None) -> None:
    given = [tensor.requires_grad_() for tensor in operands_of(FEW_ROWS, 2, torch.bfloat16)]
    with CHOICES.fixed(way):
        out = linear_sum(given[2:4], given[4:], given[0], given[1])
    out.backward(torch.ones_like(out))
    assert {out.dtype, *(t.grad.dtype for t in given if t.grad is not None)} == {torch.bfloat16}


def test_any_number_of_threads_gives_the_same_values_to_rounding() -> None:
    given = operands_of(5 * BLOCK, 2)
    before = torch.get_num_threads()
    outs = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        with CHOICES.fixed(Blocks("blas", 128)):
            outs.append(linear_sum(given[2:4], given[4:], given[0]))
    torch.set_num_threads(before)
    torch.testing.assert_close(*outs)


def test_what_is_added_is_left_as_it_was(way: Blocks | None) -> None:
    for rows in (4, FEW_ROWS):
        x, addend = numbers(rows, 8), numbers(rows, 4, seed=1)
        linear_sum([x], [numbers(4, 8)], None, addend, "relu")
        linear_sum([], [], None, addend, "relu")
        assert torch.equal(addend, numbers(rows, 4, seed=1))


def test_gradients_that_come_in_are_left_as_they_were(way: Blocks | None) -> None:
    x, weight = numbers(FEW_ROWS, 8), numbers(4, 8, seed=1).requires_grad_()
    pull = numbers(FEW_ROWS, 4, seed=2)
    linear_sum([x], [weight], None, None, "relu").backward(pull)
    assert torch.equal(pull, numbers(FEW_ROWS, 4, seed=2))


def test_only_the_inputs_that_need_a_gradient_have_one(way: Blocks | None) -> None:
    inputs = [numbers(FEW_ROWS, 8), numbers(FEW_ROWS, 5, seed=1).requires_grad_()]
    weights = [numbers(4, 8, seed=2), numbers(4, 5, seed=3)]
    linear_sum(inputs, weights).sum().backward()
    assert inputs[0].grad is None
    torch.testing.assert_close(inputs[1].grad, weights[1].sum(0).expand(FEW_ROWS, -1))


def test_blocks_are_for_many_rows(way: Blocks | None) -> None:
    out = linear(numbers(FEW_ROWS, 8), numbers(4, 8).requires_grad_())
    assert out.grad_fn is not None
    assert ("LinearSum" in out.grad_fn.name()) is (way is not None)
    few = linear(numbers(FEW_ROWS - 1, 8), numbers(4, 8).requires_grad_())
    assert few.grad_fn is not None
    assert "LinearSum" not in few.grad_fn.name()


def test_no_gradient_is_made_for_an_input_that_needs_none(way: Blocks | None) -> None:
    x, weight = numbers(FEW_ROWS, 8), numbers(4, 8).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_rows_that_are_not_contiguous_are_taken(way: Blocks | None) -> None:
    x, weight = numbers(8, FEW_ROWS).t(), numbers(8, 4).t()
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


def test_other_dtypes_are_torchs_own(way: Blocks | None) -> None:
    x, weight = numbers(FEW_ROWS, 8).half(), numbers(4, 8).half()
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert linear(numbers(FEW_ROWS, 8), numbers(4, 8)).dtype == torch.float32


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
