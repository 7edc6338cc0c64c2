"""Weighted sums by Triton, forward and both gradients, have the bits of the CPU core."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.lazy_rows import RowsById
from khop.kernels.segment_weighted import segment_weighted_sum
from support.triton_rows import DEVICE
from support.triton_segments import FEW, Edges, assert_same_bits, by_triton, some_edges


def results(x: Tensor, weights: Tensor, gradient: Tensor, indptr: Tensor, indices: Tensor) -> list[Tensor]:
    x, weights = x.requires_grad_(), weights.requires_grad_()
    out = segment_weighted_sum(x, weights, indptr, indices)
    return [out.detach(), *torch.autograd.grad(out, (x, weights), gradient)]


@FEW
@given(edges=some_edges(widths=(4, 12, 80), most_rows=9), heads=st.sampled_from([1, 4]))
def test_results_and_gradients_are_those_of_the_core(edges: Edges, heads: int) -> None:
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


def test_edges_behind_the_last_row_have_no_part() -> None:
    indptr, indices = torch.tensor([0, 2], device=DEVICE), torch.tensor([1, 0, 1, 1], device=DEVICE)
    x, weights = torch.ones(2, 4, device=DEVICE), torch.ones(4, 2, device=DEVICE)
    with by_triton():
        out, of_x, of_weights = results(x, weights, torch.ones(1, 4, device=DEVICE), indptr, indices)
    assert out.tolist() == [[2.0] * 4]
    assert of_x.tolist() == [[1.0] * 4] * 2
    assert of_weights.tolist() == [[2.0, 2.0]] * 2 + [[0.0, 0.0]] * 2


def test_rows_of_a_table_by_id_are_summed_like_gathered_ones() -> None:
    indptr, indices = torch.tensor([0, 2, 5]), torch.tensor([1, 0, 2, 2, 3], dtype=torch.int32)
    table, ids, weights = torch.randn(9, 20), torch.tensor([8, 8, 3, 0]), torch.randn(5)
    expected = segment_weighted_sum(table[ids], weights, indptr, indices)
    with by_triton():
        rows = RowsById(table.to(DEVICE), ids.to(DEVICE))
        found = segment_weighted_sum(rows, *(t.to(DEVICE) for t in (weights, indptr, indices)))
    assert rows._gathered is None
    assert_same_bits(found.cpu(), expected)
