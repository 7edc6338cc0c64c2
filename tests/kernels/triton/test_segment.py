"""Sums and means by Triton, forward and backward, have the bits of the CPU core."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.activations import dropout, dropout_key, dropout_reference
from khop.kernels.csc import Csc
from khop.kernels.lazy_rows import RowsById
from khop.kernels.segment import prefix_and_mean, segment_max, segment_mean, segment_sum
from khop.kernels.segment_attention import segment_softmax
from khop.kernels.segment_weighted import segment_mixture, segment_weighted_sum
from khop.kernels.triton.relu_gradient import relu_and_bias_gradient
from khop.kernels.triton.segment import segment_mean as mean_by_triton
from support.triton_rows import DEVICE
from support.triton_segments import DTYPES, FEW, Edges, assert_same_bits, by_triton, some_edges, with_gradient

Segment = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.mark.core(1)
@pytest.mark.parametrize("operation", [segment_sum, segment_mean])
@FEW
@given(edges=some_edges())
def test_results_and_gradients_are_those_of_the_core(operation: Segment, edges: Edges) -> None:
    x, gradient = edges.values(edges.num_sources), edges.values(edges.num_rows, seed=1)
    operands = x, gradient, edges.indptr, edges.indices
    expected = with_gradient(operation, *operands)
    with by_triton():
        found = with_gradient(operation, *(operand.to(DEVICE) for operand in operands))
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a.cpu(), b)


@pytest.mark.core(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefix_and_mean_add_both_gradients(dtype: torch.dtype) -> None:
    indptr = torch.tensor([0, 2, 2, 5])
    indices = torch.tensor([3, 0, 1, 1, 4], dtype=torch.int32)
    x, gradients = torch.randn(5, 7).to(dtype), (torch.randn(3, 7).to(dtype), torch.randn(3, 7).to(dtype))

    def gradient_of_x(device: torch.device) -> Tensor:
        leaf = x.to(device).requires_grad_()
        outputs = prefix_and_mean(leaf, indptr.to(device), indices.to(device))
        return torch.autograd.grad(outputs, leaf, [g.to(device) for g in gradients])[0].cpu()

    expected = gradient_of_x(torch.device("cpu"))
    with by_triton():
        assert_same_bits(gradient_of_x(DEVICE), expected)


def test_rows_at_any_pitch_are_read_and_their_padding_is_not_summed() -> None:
    indptr, indices = torch.tensor([0, 3]), torch.tensor([1, 0, 1], dtype=torch.int32)
    wide = torch.full((2, 12), torch.nan, dtype=torch.bfloat16)
    for width in (9, 12):
        x = wide[:, :width].copy_(torch.arange(2 * width).view(2, width))
        edges = Csc(indptr.to(DEVICE), indices.to(DEVICE))
        found = mean_by_triton(x.to(DEVICE), edges).cpu()
        assert_same_bits(found, segment_mean(x, indptr, indices))


@pytest.mark.parametrize("operation", [segment_sum, segment_mean])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_table_by_id_are_summed_like_gathered_ones(operation: Segment, dtype: torch.dtype) -> None:
    indptr, indices = (
        torch.tensor([0, 3, 3, 8]),
        torch.tensor([1, 0, 1, 2, 4, 4, 0, 3, 99], dtype=torch.int32),
    )
    table, ids = torch.randn(9, 20).to(dtype), torch.tensor([8, 8, 3, 0, 5, 77])  # the last ones are unused
    expected = operation(table[ids[:5]], indptr, indices[:8])
    with by_triton():
        rows = RowsById(table.to(DEVICE), ids.to(DEVICE))
        found = operation(rows, indptr.to(DEVICE), indices.to(DEVICE))
    assert rows._gathered is None
    assert_same_bits(found.cpu(), expected)


# Maxima by Triton, forward and backward, have the bits of the CPU core.


@FEW
@given(edges=some_edges())
def test_results_and_gradients_are_those_of_the_core_segment_max(edges: Edges) -> None:
    x, gradient = edges.values(edges.num_sources), edges.values(edges.num_rows, seed=1)
    operands = x, gradient, edges.indptr, edges.indices
    expected = with_gradient(segment_max, *operands)
    with by_triton():
        found = with_gradient(segment_max, *(operand.to(DEVICE) for operand in operands))
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a.cpu(), b)


def test_of_equal_values_the_first_edge_gets_the_gradient() -> None:
    x = torch.tensor([[1.0], [2.0], [2.0]], device=DEVICE)
    indptr, indices = torch.tensor([0, 3], device=DEVICE), torch.tensor([0, 2, 1], device=DEVICE)
    with by_triton():
        _, gradient = with_gradient(segment_max, x, torch.ones(1, 1, device=DEVICE), indptr, indices.int())
    assert gradient.flatten().tolist() == [0.0, 0.0, 1.0]


# Softmax by Triton, forward and backward, has the bits of the CPU core.


@FEW
@given(edges=some_edges(widths=(1, 3, 4)), spread=st.sampled_from([1, 300]))
def test_results_and_gradients_are_those_of_the_core_segment_softmax(edges: Edges, spread: int) -> None:
    scores = (edges.values(edges.indices.numel()).double() * spread).to(edges.dtype)
    operands = scores, edges.values(scores.shape[0], seed=1), edges.indptr
    expected = with_gradient(segment_softmax, *operands)
    with by_triton():
        found = with_gradient(segment_softmax, *(operand.to(DEVICE) for operand in operands))
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a.cpu(), b)


@pytest.mark.long
def test_every_exponent_is_that_of_the_core() -> None:
    for dtype in DTYPES:
        scores = -torch.linspace(0, 800, 1500, dtype=torch.float64).to(dtype)
        pairs = torch.stack([torch.zeros_like(scores), scores], 1).flatten()
        indptr = torch.arange(0, 3001, 2)
        with by_triton():
            found = segment_softmax(pairs.to(DEVICE), indptr.to(DEVICE))
        assert_same_bits(found.cpu(), segment_softmax(pairs, indptr))


def test_scores_behind_the_last_row_give_0() -> None:
    scores, indptr = torch.ones(4, 2, device=DEVICE), torch.tensor([0, 2], device=DEVICE)
    with by_triton():
        assert segment_softmax(scores, indptr).tolist() == [[0.5, 0.5]] * 2 + [[0.0, 0.0]] * 2


# Weighted sums by Triton, forward and both gradients, have the bits of the CPU core.


def results(x: Tensor, weights: Tensor, gradient: Tensor, indptr: Tensor, indices: Tensor) -> list[Tensor]:
    x, weights = x.requires_grad_(), weights.requires_grad_()
    out = segment_weighted_sum(x, weights, indptr, indices)
    return [out.detach(), *torch.autograd.grad(out, (x, weights), gradient)]


@FEW
@given(edges=some_edges(widths=(4, 12, 80), most_rows=9), heads=st.sampled_from([1, 4]))
def test_results_and_gradients_are_those_of_the_core_segment_weighted(edges: Edges, heads: int) -> None:
    random = torch.Generator().manual_seed(7)
    weights = torch.randn(edges.indices.numel(), heads, generator=random).to(edges.dtype)
    operands = (
        edges.values(edges.num_sources),
        weights,
        edges.values(edges.num_rows, seed=1),
        edges.indptr,
        edges.indices,
    )
    expected = results(*operands)
    with by_triton():
        found = results(*(operand.detach().to(DEVICE) for operand in operands))
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a.cpu(), b)


def test_sums_of_a_mixture_are_those_of_the_core_and_gradients_up_to_rounding() -> None:
    random = torch.Generator().manual_seed(7)
    indptr, indices = torch.tensor([0, 20, 20, 50]), torch.randint(6, (50,), generator=random)
    shapes = (6, 12), (50, 3), (3, 36)
    x, weights, gradient = (torch.randn(shape, generator=random) for shape in shapes)

    def mixed(*operands: Tensor) -> list[Tensor]:
        x, weights, gradient, indptr, indices = operands
        x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
        out = segment_mixture(x, weights, indptr, indices)
        return [out.detach(), *torch.autograd.grad(out, (x, weights), gradient)]

    operands = x, weights, gradient, indptr, indices
    expected = mixed(*operands)
    with by_triton():
        found = [each.cpu() for each in mixed(*(each.to(DEVICE) for each in operands))]
    assert_same_bits(found[0], expected[0])
    for a, b in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_edges_behind_the_last_row_have_no_part() -> None:
    indptr, indices = torch.tensor([0, 2], device=DEVICE), torch.tensor([1, 0, 1, 1], device=DEVICE)
    x, weights = torch.ones(2, 4, device=DEVICE), torch.ones(4, 2, device=DEVICE)
    with by_triton():
        out, of_x, of_weights = results(x, weights, torch.ones(1, 4, device=DEVICE), indptr, indices)
    assert out.tolist() == [[2.0] * 4]
    assert of_x.tolist() == [[1.0] * 4] * 2
    assert of_weights.tolist() == [[2.0, 2.0]] * 2 + [[0.0, 0.0]] * 2


def test_rows_of_a_table_by_id_are_summed_like_gathered_ones_segment_weighted() -> None:
    indptr, indices = torch.tensor([0, 2, 5]), torch.tensor([1, 0, 2, 2, 3], dtype=torch.int32)
    table, ids, weights = torch.randn(9, 20), torch.tensor([8, 8, 3, 0]), torch.randn(5)
    expected = segment_weighted_sum(table[ids], weights, indptr, indices)
    with by_triton():
        rows = RowsById(table.to(DEVICE), ids.to(DEVICE))
        found = segment_weighted_sum(rows, *(t.to(DEVICE) for t in (weights, indptr, indices)))
    assert rows._gathered is None
    assert_same_bits(found.cpu(), expected)


# Gradients of relu and bias on a device: the masked rows bit for bit, their sums up to rounding.


@pytest.mark.core(2)
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


# Keyed dropout by Triton drops what the reference drops, forward and backward.


KEYS = (5, -(1 << 62) + 12345)


def on_device(key: int) -> Tensor:
    return torch.full((1,), key, device=DEVICE)


@pytest.mark.core(2)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 5), (130, 17)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_the_reference(
    dtype: torch.dtype, shape: tuple[int, int], key: int
) -> None:
    x, gradient = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    with by_triton(), dropout_key(on_device(key)):
        for call in range(2):
            found = with_gradient(dropout, x.to(DEVICE), gradient.to(DEVICE), 0.2)
            for values, of in zip(found, (x, gradient), strict=True):
                expected = dropout_reference(of, torch.tensor([key]), call, round(0.2 * 65536))
                assert_same_bits(values.cpu(), expected)


def test_the_share_that_is_dropped_is_the_rate_and_calls_differ() -> None:
    count, rate = 1 << 16, 0.3
    dropped = round(rate * 65536)
    first, second = (
        dropout_reference(torch.ones(count), torch.tensor([7]), call, dropped) == 0 for call in (0, 1)
    )
    for share in (first, second):
        assert abs(int(share.sum()) - count * rate) < 5 * (count * rate * (1 - rate)) ** 0.5
    assert abs(int((first & second).sum()) - count * rate**2) < 5 * (count * rate**2) ** 0.5


def test_a_key_gives_the_same_values_again_and_none_gives_torchs_own() -> None:
    x = torch.ones(400, device=DEVICE)
    outputs = []
    for key in (3, 3, 4):
        with by_triton(), dropout_key(on_device(key)):
            outputs.append(dropout(x, 0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    with by_triton():
        torch.manual_seed(1)
        own = dropout(x, 0.5)
        torch.manual_seed(1)
        assert torch.equal(own, torch.nn.functional.dropout(x, 0.5))


def test_the_cpu_keeps_torchs_generator() -> None:
    x = torch.ones(64)
    torch.manual_seed(1)
    expected = dropout(x, 0.5)
    torch.manual_seed(1)
    with dropout_key(torch.tensor([3])):
        assert torch.equal(dropout(x, 0.5), expected)
