"""Sums over many edges are added in runs of 512: forward and backward, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.segment import (
    accumulator,
    segment_max,
    segment_mean,
    segment_sum,
    transpose,
)
from khop.kernels.segment_weighted import segment_mixture, segment_weighted_sum
from support.run_sums import RUN, sums_of_rows
from support.triton_segments import DTYPES, assert_same_bits

DEGREES = st.lists(st.sampled_from([0, 1, 7, RUN - 1, RUN, RUN + 1, 2 * RUN, 3000]), min_size=1, max_size=5)
WIDTHS = st.sampled_from([1, 3, 16, 47, 100, 130])


def rows_of(degrees: list[int]) -> tuple[Tensor, Tensor]:
    """Rows of these degrees, whose edges come from 7 sources; most come from source 3."""
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    indices = torch.arange(int(indptr[-1])) * 31 % 7
    return indptr, torch.where(indices % 2 == 0, 3, indices).int()


def numbers(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=random, dtype=torch.float64).to(dtype)


def with_gradient(operation: Callable[..., Tensor], x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    out = operation(x)
    return out.detach(), torch.autograd.grad(out, x, gradient)[0]


@given(degrees=DEGREES, width=WIDTHS, dtype=st.sampled_from(DTYPES))
def test_sums_and_means_and_their_gradients(degrees: list[int], width: int, dtype: torch.dtype) -> None:
    indptr, indices = rows_of(degrees)
    x, gradient = numbers(7, width, dtype), numbers(len(degrees), width, dtype, seed=1)
    turned = transpose(indptr, indices, 7)
    sums = sums_of_rows(x[indices.long()], indptr)
    found = with_gradient(lambda x: segment_sum(x, indptr, indices), x, gradient)
    assert_same_bits(found[0], sums.to(dtype))
    assert_same_bits(found[1], sums_of_rows(gradient[turned.indices.long()], turned.indptr).to(dtype))

    found = with_gradient(lambda x: segment_mean(x, indptr, indices), x, gradient)
    counts = indptr.diff().to(sums.dtype).unsqueeze(1)
    assert_same_bits(found[0], (sums / counts.clamp(min=1)).to(dtype))
    shares = gradient.to(sums.dtype) * counts.reciprocal()
    assert_same_bits(found[1], sums_of_rows(shares[turned.indices.long()], turned.indptr).to(dtype))


@given(degrees=DEGREES, width=WIDTHS, dtype=st.sampled_from(DTYPES))
def test_weighted_sums_and_their_gradient(degrees: list[int], width: int, dtype: torch.dtype) -> None:
    indptr, indices = rows_of(degrees)
    x, gradient = numbers(7, width, dtype), numbers(len(degrees), width, dtype, seed=1)
    weights = numbers(indices.numel(), 1, accumulator(dtype), seed=2)
    rows = torch.arange(len(degrees)).repeat_interleave(indptr.diff())
    found = with_gradient(lambda x: segment_weighted_sum(x, weights, indptr, indices), x, gradient)
    terms = x.to(weights.dtype)[indices.long()] * weights
    assert_same_bits(found[0], sums_of_rows(terms, indptr).to(dtype))
    terms, order = gradient.to(weights.dtype)[rows] * weights, indices.argsort(stable=True)
    turned = transpose(indptr, indices, 7)
    assert_same_bits(found[1], sums_of_rows(terms[order], turned.indptr).to(dtype))


@given(degrees=DEGREES, width=WIDTHS, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_mixtures_and_their_gradient_with_one_basis(
    degrees: list[int], width: int, dtype: torch.dtype
) -> None:
    indptr, indices = rows_of(degrees)
    x, gradient = numbers(7, width, dtype), numbers(len(degrees), width, dtype, seed=1)
    weights = numbers(indices.numel(), 1, dtype, seed=2)
    found = with_gradient(lambda x: segment_mixture(x, weights, indptr, indices), x, gradient)
    expected = with_gradient(lambda x: segment_weighted_sum(x, weights, indptr, indices), x, gradient)
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a, b)


@given(degrees=DEGREES, width=WIDTHS, dtype=st.sampled_from(DTYPES))
def test_gradients_of_maxima(degrees: list[int], width: int, dtype: torch.dtype) -> None:
    count, many = sum(degrees), len(degrees)
    indptr = torch.arange(count + 1)  # one edge for each destination
    indices = torch.arange(many).repeat_interleave(torch.tensor(degrees)).int()
    x, gradient = numbers(many, width, dtype), numbers(count, width, dtype, seed=1)
    of_sources = torch.tensor([0, *degrees]).cumsum(0)
    expected = sums_of_rows(gradient, of_sources).to(dtype)
    assert_same_bits(with_gradient(lambda x: segment_max(x, indptr, indices), x, gradient)[1], expected)


def test_a_maximum_in_parallel_edges_counts_once_where_a_run_ends() -> None:
    """Edges 511 and 512 have the same destination: the last one of a run, and the first of the next."""
    indptr = torch.tensor([*range(RUN), RUN + 1, *range(RUN + 2, 2 * RUN + 2)])
    x = torch.ones(1, 3, requires_grad=True)
    out = segment_max(x, indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32))
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    assert x.grad.tolist() == [[float(indptr.numel() - 1)] * 3]


@pytest.mark.parametrize("count", [100_000, RUN * RUN, RUN * RUN + 1])
def test_a_hub_of_many_edges(count: int) -> None:
    """More than RUN runs have sums of sums."""
    x, indices = numbers(1000, 3, torch.float32), torch.arange(count, dtype=torch.int32) * 7 % 1000
    indptr = torch.tensor([0, 2, 2 + count])
    indices = torch.cat([torch.tensor([5, 6], dtype=torch.int32), indices])
    expected = sums_of_rows(x[indices.long()], indptr)
    before, gradient = torch.get_num_threads(), numbers(count, 3, torch.float32, seed=1)
    one_each, no_indices = torch.arange(count + 1), torch.zeros(count, dtype=torch.int32)
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_same_bits(segment_sum(x, indptr, indices), expected)
            found = with_gradient(lambda x: segment_sum(x, one_each, no_indices), x[:1], gradient)
            assert_same_bits(found[1], sums_of_rows(gradient, torch.tensor([0, count])))
    finally:
        torch.set_num_threads(before)
