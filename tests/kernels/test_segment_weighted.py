"""Weighted sums by heads equal the reference, forward and backward, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.segment import accumulator, segment_sum
from khop.kernels.segment_attention import segment_softmax, segment_softmax_reference
from khop.kernels.segment_weighted import segment_weighted_sum, segment_weighted_sum_reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 2e-14, torch.bfloat16: 2**-7, torch.float16: 2**-10}
WIDTHS = [(1, 1), (6, 3), (16, 1), (64, 4), (64, 8), (40, 2), (33, 1), (120, 3), (130, 1)]  # columns, heads


def some_edges(degrees: list[int], sources: int) -> tuple[Tensor, Tensor]:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    random = torch.Generator().manual_seed(len(degrees))
    return indptr, torch.randint(sources, (int(indptr[-1]),), generator=random, dtype=torch.int32)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)


def with_gradients(
    operation: Callable[..., Tensor], x: Tensor, weights: Tensor, *edges: Tensor
) -> list[Tensor]:
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    out = operation(x, weights, *edges)
    gradient = numbers(*out.shape, dtype=out.dtype, seed=3)
    return [out.detach(), *torch.autograd.grad(out, (x, weights), gradient)]


@given(
    degrees=st.lists(st.sampled_from([0, 1, 2, 5, 31, 33, 100]), max_size=12),
    shape=st.sampled_from(WIDTHS),
    dtype=st.sampled_from(list(TOLERANCE)),
    wide_ids=st.booleans(),
)
def test_equals_the_reference_forward_and_backward(
    degrees: list[int], shape: tuple[int, int], dtype: torch.dtype, wide_ids: bool
) -> None:
    indptr, indices = some_edges(degrees, 9)
    indices = indices.long() if wide_ids else indices
    x, (width, heads) = numbers(9, shape[0], dtype=dtype), shape
    weights = numbers(indices.numel(), heads, dtype=accumulator(dtype))
    found = with_gradients(segment_weighted_sum, x, weights, indptr, indices)
    # The reference in float64: bfloat16 then differs only by the rounding of results.
    exact = with_gradients(segment_weighted_sum_reference, x.double(), weights.double(), indptr, indices)
    sizes = with_gradients(
        segment_weighted_sum_reference, x.double().abs(), weights.double().abs(), indptr, indices
    )
    assert found[0].dtype == dtype
    assert [part.shape for part in found] == [part.shape for part in exact]
    assert found[1].dtype == dtype
    for part, expected, size in zip(found, exact, sizes, strict=True):
        room = TOLERANCE[dtype] * (1 + size.abs().max().nan_to_num() if size.numel() else 1) * (10 + width)
        assert not part.numel() or bool(((part.double() - expected).abs() <= room).all())


def test_gradients_are_those_of_finite_differences() -> None:
    indptr, indices = some_edges([3, 0, 5, 2], 4)
    x, weights = numbers(4, 6, dtype=torch.float64), numbers(10, 3, dtype=torch.float64)
    operands = (x.requires_grad_(), weights.requires_grad_())
    assert torch.autograd.gradcheck(lambda *of: segment_weighted_sum(*of, indptr, indices), operands)


@pytest.mark.core(3)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("width", "heads"), WIDTHS)
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype, width: int, heads: int) -> None:
    indptr, indices = some_edges([7, 0, 30, 1, 90] * 100, 300)
    x, weights = numbers(300, width, dtype=dtype), numbers(indices.numel(), heads, dtype=dtype)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(with_gradients(segment_weighted_sum, x, weights, indptr, indices))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_weights_of_one_are_the_sum(dtype: torch.dtype) -> None:
    indptr, indices = some_edges([3, 0, 40, 2], 9)
    x = numbers(9, 20, dtype=dtype)
    for weights in (torch.ones(45), torch.ones(45, 4)):
        found = segment_weighted_sum(x, weights, indptr, indices)
        assert torch.equal(found, segment_sum(x, indptr, indices))


def test_only_what_needs_a_gradient_gets_one() -> None:
    indptr, indices = some_edges([2, 1], 3)
    x, weights = numbers(3, 4, dtype=torch.float32), numbers(3, dtype=torch.float32)
    assert segment_weighted_sum(x, weights, indptr, indices).grad_fn is None
    segment_weighted_sum(x, weights.requires_grad_(), indptr, indices).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weights.grad, x[indices.long()].sum(1))


def test_operands_that_are_not_contiguous() -> None:
    indptr, indices = some_edges([2, 3], 4)
    x, weights = numbers(8, 4, dtype=torch.float32).t(), numbers(2, 5, dtype=torch.float32).t()
    found = with_gradients(segment_weighted_sum, x, weights, indptr, indices)
    expected = with_gradients(segment_weighted_sum, x.contiguous(), weights.contiguous(), indptr, indices)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2), r"weights are \(2,\) on cpu: must be \(3\) or \(3, heads\) on cpu"),
        (torch.ones(3, 1, 1), r"weights are \(3, 1, 1\)"),
        (torch.ones(3, 3), "weights of 3 heads: must divide the 4 columns of x"),
        (torch.ones(3, 0), "weights of 0 heads: must divide"),
        (torch.ones(3, device="meta"), "on meta"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Tensor, message: str) -> None:
    indptr, indices = some_edges([2, 1], 3)
    with pytest.raises(ValueError, match=message):
        segment_weighted_sum(torch.ones(3, 4), weights, indptr, indices)


TOLERANCE_SEGMENT_SOFTMAX = {
    torch.float32: 2e-6,
    torch.float64: 1e-14,
    torch.bfloat16: 1e-2,
    torch.float16: 1e-3,
}


def rows_of(degrees: list[int]) -> Tensor:
    return torch.tensor([0, *degrees]).cumsum(0)


def some_scores(edges: int, heads: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(edges)
    return (20 * torch.randn(edges, *heads, generator=random, dtype=torch.float64)).to(dtype)


@given(
    degrees=st.lists(st.sampled_from([0, 1, 2, 5, 16, 17, 100]), max_size=20),
    heads=st.sampled_from([(), (1,), (3,), (8,), (0,)]),
    dtype=st.sampled_from(list(TOLERANCE_SEGMENT_SOFTMAX)),
)
def test_equals_the_reference_forward_and_backward_segment_softmax(
    degrees: list[int], heads: tuple[int, ...], dtype: torch.dtype
) -> None:
    indptr = rows_of(degrees)
    scores = some_scores(sum(degrees), heads, dtype).requires_grad_()
    out, expected = segment_softmax(scores, indptr), segment_softmax_reference(scores, indptr)
    assert out.shape == scores.shape
    torch.testing.assert_close(
        out, expected, rtol=TOLERANCE_SEGMENT_SOFTMAX[dtype] * 3, atol=TOLERANCE_SEGMENT_SOFTMAX[dtype]
    )
    weights = some_scores(sum(degrees) + 1, heads, dtype)[1:]
    (gradient,) = torch.autograd.grad(out, scores, weights)
    (expected_gradient,) = torch.autograd.grad(expected, scores, weights)
    torch.testing.assert_close(
        gradient,
        expected_gradient,
        rtol=30 * TOLERANCE_SEGMENT_SOFTMAX[dtype],
        atol=60 * TOLERANCE_SEGMENT_SOFTMAX[dtype],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_are_exact_over_the_whole_range(dtype: torch.dtype) -> None:
    lowest = -87.0 if dtype == torch.float32 else -708.0
    scores = torch.linspace(lowest, 0, 20_001, dtype=dtype)
    pairs = torch.stack([scores, torch.zeros_like(scores)], 1).flatten()
    power = segment_softmax(pairs, torch.arange(0, pairs.numel() + 1, 2)).view(-1, 2)
    exact = scores.double().exp()
    error = (power[:, 0].double() / power[:, 1].double() / exact - 1).abs().max()
    assert error < 4 * torch.finfo(dtype).eps


def test_gradients_are_those_of_finite_differences_segment_softmax() -> None:
    scores = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    indptr = rows_of([3, 0, 1, 5])
    assert torch.autograd.gradcheck(lambda s: segment_softmax(s, indptr), (scores.requires_grad_(),))


@pytest.mark.core(1)
@pytest.mark.parametrize("dtype", list(TOLERANCE_SEGMENT_SOFTMAX))
def test_bits_do_not_depend_on_the_number_of_threads_segment_softmax(dtype: torch.dtype) -> None:
    indptr = rows_of([7, 0, 30, 1, 90] * 1000)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        scores = some_scores(int(indptr[-1]), (2,), dtype).requires_grad_()
        out = segment_softmax(scores, indptr)
        out.backward(some_scores(int(indptr[-1]), (2,), dtype).flip(0))
        results.append((out.detach(), scores.grad))
    torch.set_num_threads(before)
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_infinities_and_nan_are_as_in_torch() -> None:
    infinity, nan = torch.inf, torch.nan
    rows = [[0.0, -infinity, 1.0], [-infinity, -infinity, -infinity], [0.0, infinity, 1.0], [nan, 0.0, 1.0]]
    scores = torch.tensor(rows)
    out = segment_softmax(scores.flatten(), rows_of([3, 3, 3, 3]))
    torch.testing.assert_close(out.view(4, 3), scores.softmax(1), equal_nan=True)
    assert out[1] == 0


def test_no_gradient_work_where_scores_need_none() -> None:
    assert segment_softmax(torch.zeros(3), rows_of([1, 2])).grad_fn is None


def test_scores_and_gradients_that_are_not_contiguous() -> None:
    scores = some_scores(6, (4,), torch.float32)
    strided = scores.t().contiguous().t().requires_grad_()
    out = segment_softmax(strided, rows_of([4, 2]))
    assert torch.equal(out, segment_softmax(scores, rows_of([4, 2])))
    out.sum().backward()
    assert strided.grad is not None
    assert strided.grad.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("scores", "indptr", "message"),
    [
        (torch.zeros(3, 2, 2), rows_of([3]), r"scores are torch.float32 \(3, 2, 2\)"),
        (torch.zeros(3).int(), rows_of([3]), "scores are torch.int32"),
        (torch.zeros(3), rows_of([2]), "end with the number of edges, 3"),
        (torch.zeros(3), rows_of([3]).float(), "indptr is torch.float32"),
        (torch.zeros(3), rows_of([3]).to("meta"), "indptr is on meta"),
    ],
)
def test_what_has_no_softmax_is_said(scores: Tensor, indptr: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        segment_softmax(scores, indptr)


def test_autocast_may_hand_it_bfloat16_between_float32_weights() -> None:
    indptr = torch.tensor([0, 3, 3, 5])
    score = torch.nn.Linear(4, 2)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        weights = segment_softmax(score(x), indptr)
    assert weights.dtype == torch.bfloat16
    (wanted,) = torch.autograd.grad(segment_softmax(score(x), indptr).square().sum(), score.weight)
    weights.float().square().sum().backward()
    assert score.weight.grad is not None
    torch.testing.assert_close(score.weight.grad, wanted, rtol=0.1, atol=0.02)
