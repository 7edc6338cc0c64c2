"""Sums and means by Triton, forward and backward, have the bits of the CPU core."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.lazy_rows import RowsById
from khop.kernels.segment import prefix_and_mean, segment_mean, segment_sum
from khop.kernels.triton.segment import segment_mean as mean_by_triton
from support.triton_rows import DEVICE
from support.triton_segments import FEW, Edges, assert_same_bits, by_triton, some_edges, with_gradient

Segment = Callable[[Tensor, Tensor, Tensor], Tensor]


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
