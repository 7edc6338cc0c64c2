"""Mixtures of rows and joined edges equal their references, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.segment_weighted import (
    merge_edges,
    merge_edges_reference,
    segment_mixture,
    segment_mixture_reference,
)
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

DEGREES = st.lists(st.sampled_from([0, 1, 2, 5, 33]), max_size=10)


def some_edges(degrees: list[int], sources: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    random = torch.Generator().manual_seed(seed)
    return indptr, torch.randint(sources, (int(indptr[-1]),), generator=random, dtype=torch.int32)


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_gradients(
    operation: Callable[..., Tensor], x: Tensor, weights: Tensor, *edges: Tensor
) -> list[Tensor]:
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    out = operation(x, weights, *edges)
    return [
        out.detach(),
        *torch.autograd.grad(out, (x, weights), numbers(*out.shape, dtype=out.dtype, seed=3).to(x.device)),
    ]


@given(degrees=DEGREES, width=st.sampled_from([1, 7, 8, 33, 64]), bases=st.sampled_from([1, 3, 8]))
def test_equals_the_reference_forward_and_backward(degrees: list[int], width: int, bases: int) -> None:
    indptr, indices = some_edges(degrees, 9)
    operands = numbers(9, width), numbers(indices.numel(), bases, seed=1)
    found = with_gradients(segment_mixture, *operands, indptr, indices)
    expected = with_gradients(segment_mixture_reference, *operands, indptr, indices)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_kernels_of_a_device_give_the_numbers_of_the_core() -> None:
    indptr, indices = some_edges([3, 0, 40, 1], 9)
    operands = numbers(9, 7), numbers(indices.numel(), 3, seed=1)
    expected = with_gradients(segment_mixture, *operands, indptr, indices)
    on_device = [each.to(DEVICE) for each in (*operands, indptr, indices)]
    with by_triton():
        found = with_gradients(segment_mixture, *on_device)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    indptr, indices = some_edges([7, 0, 30, 1, 90] * 60, 300)
    operands = numbers(300, 64, dtype=dtype), numbers(indices.numel(), 8, dtype=dtype, seed=1)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(with_gradients(segment_mixture, *operands, indptr, indices))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for others in results[1:] for pair in zip(results[0], others, strict=True))


def test_half_precision_is_computed_by_torch() -> None:
    indptr, indices = some_edges([2, 3], 4)
    x, weights = numbers(4, 8, dtype=torch.bfloat16), numbers(5, 2)
    expected = segment_mixture(x.double(), weights.bfloat16().double(), indptr, indices)
    torch.testing.assert_close(
        segment_mixture(x, weights, indptr, indices).double(), expected, rtol=0.1, atol=0.1
    )


@given(
    rows=st.integers(0, 7),
    degrees=st.lists(st.lists(st.integers(0, 4), min_size=7, max_size=7), min_size=1, max_size=5),
)
def test_edges_of_types_are_joined_by_row(rows: int, degrees: list[list[int]]) -> None:
    edges = [Csc(*some_edges(of_type[:rows], 6, seed)) for seed, of_type in enumerate(degrees)]
    firsts = [6 * (number % 2) for number in range(len(edges))]
    joined, relations = merge_edges(edges, firsts, rows, 12)
    expected, of_types = merge_edges_reference(edges, firsts, rows, 12)
    assert joined.indptr.tolist() == expected.indptr.tolist()
    assert joined.indices.tolist() == expected.indices.tolist()
    assert relations.tolist() == of_types.tolist()


def test_unfit_operands_are_errors() -> None:
    indptr, indices = some_edges([2, 3], 4)
    with pytest.raises(ValueError, match=r"weights are \(4, 2\): must be \(5, bases\)"):
        segment_mixture(numbers(4, 8), numbers(4, 2), indptr, indices)
    with pytest.raises(ValueError, match="source"):
        merge_edges([Csc(indptr, indices)], [0], 2, 1)
