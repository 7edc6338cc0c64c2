"""The sum of products of a layer equals torch's own, forward and backward, in every way to compute it.

A layer's products on a device have the values and gradients of torch's own operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from khop.kernels.activations import dropout, relu_
from khop.kernels.linear import (
    TILE,
    AutocastWeights,
    aligned,
    grouped_linear,
    linear,
    linear_sum,
)
from khop.kernels.linear_blocks import Activation, Blocks, linear_sum_blocks
from khop.kernels.linear_choice import CHOICES, FEW_ROWS
from support.linear_sums import BLOCK, numbers, operands_of, summed
from support.lowered import Lowered
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


# Sums of products in blocks of rows: exact in float64, and only for dtypes that the library has.


@pytest.mark.parametrize("rows", [0, 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_addend", [False, True])
def test_blocks_in_float64_are_exact(rows: int, activation: Activation, has_addend: bool) -> None:
    given = operands_of(rows, 2, torch.float64)
    found, exact = ([tensor.clone().requires_grad_() for tensor in given] for _ in range(2))
    addend = found[1] if has_addend else None
    way = Blocks("blas", BLOCK)
    out = linear_sum_blocks(way, torch.float64, activation, found[0], addend, *found[2:])
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


# Products by group equal the products row by row, forward and backward.


@given(
    groups=st.lists(st.integers(0, 4), max_size=3 * TILE),
    count=st.integers(5, 7),
)
def test_each_row_is_multiplied_by_the_matrix_of_its_group(groups: list[int], count: int) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(len(groups), 3, generator=random, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(count, 4, 3, generator=random, dtype=torch.float64, requires_grad=True)
    of = torch.tensor(groups, dtype=torch.int64)
    found, expected = grouped_linear(x, weights, of), torch.einsum("ni,noi->no", x, weights[of])
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(found.shape, generator=random, dtype=torch.float64)
    ours = torch.autograd.grad(found, (x, weights), upstream)
    theirs = torch.autograd.grad(expected, (x, weights), upstream)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


# Dropout drops the share asked for, keeps the expectation, and repeats with the generator's seed.


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def dropped_with_seed(x: Tensor, rate: float, seed: int) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dropout(x, rate)


@pytest.mark.core(2)
@pytest.mark.parametrize("rate", [1 / 65536, 0.1, 0.2, 0.5, 0.9, 0.999])
def test_the_share_that_is_dropped_is_the_rate_and_the_rest_is_scaled(rate: float) -> None:
    count = 1 << 20
    out = dropped_with_seed(torch.ones(count, dtype=torch.float64), rate, seed=1)
    dropped = int((out == 0).sum())
    sigma = (count * rate * (1 - rate)) ** 0.5
    assert abs(dropped - count * rate) < 5 * sigma + count * 2**-17
    rounded = round(rate * 65536) / 65536
    assert out[out != 0].unique().tolist() == [pytest.approx(1 / (1 - rounded))]


@given(st.integers(0, 9), st.integers(0, 7), st.sampled_from(DTYPES), st.integers(0, 2**63))
def test_values_are_scaled_or_dropped_and_so_are_gradients(
    rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    x = (torch.arange(rows * width).reshape(rows, width) + 1.0).to(dtype).requires_grad_()
    out = dropped_with_seed(x, 0.5, seed)
    assert out.dtype == dtype
    assert bool(((out == 0) | (out == 2 * x)).all())
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad * x, out)


def test_equal_seeds_drop_the_same_values_on_any_number_of_threads() -> None:
    x = torch.randn(500, 300)
    before = torch.get_num_threads()
    outputs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        outputs.append(dropped_with_seed(x, 0.3, seed=5))
    torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], dropped_with_seed(x, 0.3, seed=6))


def test_neighboring_values_are_dropped_independently() -> None:
    kept = (dropped_with_seed(torch.ones(1 << 20), 0.5, seed=2) != 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs(float((kept[distance:] * kept[:-distance]).mean())) < 5 * 0.25 / 2**10


def test_a_rate_of_zero_changes_nothing() -> None:
    x = torch.randn(4)
    assert dropout(x, 0.0) is x


def test_a_transposed_input_keeps_its_places() -> None:
    x = torch.arange(1.0, 13.0).reshape(3, 4).T
    out = dropped_with_seed(x, 0.5, seed=3)
    assert bool(((out == 0) | (out == 2 * x)).all())


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0])
def test_other_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"dropout rate {rate}: must be at least 0 and below 1"):
        dropout(torch.ones(3), rate)


def test_off_the_cpu_it_is_torchs_own() -> None:
    assert dropout(torch.ones(3, device="meta"), 0.5).device.type == "meta"


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 3), (5, 1), (5, 8), (7, 33), (3, 0)])
def test_rows_are_converted_and_padded_at_once(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    rows = numbers(*shape, seed=1)
    found = aligned(rows, dtype)
    assert torch.equal(found[:, : shape[1]], rows.to(dtype))
    assert found.shape[1] * dtype.itemsize % 16 == 0
    assert found.shape[1] * dtype.itemsize < shape[1] * dtype.itemsize + 16
    assert (found[:, shape[1] :] == 0).all()
    is_whole = found.shape[1] == shape[1]
    assert (found.data_ptr() == rows.data_ptr()) is (is_whole and dtype == rows.dtype) or not rows.numel()


@pytest.mark.core(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_kept_copies_of_weights_have_the_bits_of_autocast(has_bias: bool, dtype: torch.dtype) -> None:
    """Two steps: the weights change in between, and only the first one converts them."""
    x = numbers(30, 33, seed=1).to(DEVICE)
    weights = [nn.Parameter(numbers(17, 33, seed=n).to(DEVICE)) for n in (2, 3)]
    bias = nn.Parameter(numbers(17, seed=4).to(DEVICE)) if has_bias else None
    operands = weights if bias is None else [*weights, bias]
    gradient = numbers(30, 17, seed=5).to(DEVICE, dtype)

    def step() -> list[Tensor]:
        with torch.autocast(DEVICE.type, dtype, cache_enabled=False):
            out = linear_sum([x, x], weights, bias, activation="relu")
        return [out.detach(), *torch.autograd.grad(out, operands, gradient)]

    kept = AutocastWeights()
    with by_triton():
        for number in range(2):
            expected = step()
            kept.update()
            with kept.used(), Lowered(weights) as lowered:
                found = step()
            assert lowered.count == (2 if number == 0 else 0)
            assert [tensor.dtype for tensor in found] == [dtype, *[torch.float32] * len(operands)]
            for ours, theirs in zip(found, expected, strict=True):
                assert torch.equal(ours, theirs)
            with torch.no_grad():
                for weight in weights:
                    weight.mul_(1.1)
