"""Fused attention equals its steps, with their gradients, on any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.test_segment import SIZES, operands
from khop.kernels.segment_attention import segment_attention, segment_attention_reference

SLOPE = 0.2


def scored(
    seed: int, rows: int, sources: int, edges: int, heads: int
) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """Values, scores of sources and scores of rows; the edges."""
    values, _, indptr, indices = operands(seed, rows, sources, edges, 6)
    random = torch.Generator().manual_seed(seed + 1)
    scores = [torch.randn(count, heads, generator=random, dtype=torch.float64) for count in (sources, rows)]
    return [values, *scores], (indptr, indices)


@given(*SIZES, st.sampled_from([1, 2, 3]), st.booleans())
def test_values_and_gradients_are_those_of_the_steps(
    seed: int, rows: int, sources: int, edges: int, heads: int, has_rows: bool
) -> None:
    given_operands, given_edges = scored(seed, rows, sources, edges, heads)
    results = []
    for function in (segment_attention, segment_attention_reference):
        values, of_sources, of_rows = (operand.clone().requires_grad_() for operand in given_operands)
        out = function(values, of_sources, of_rows if has_rows else None, *given_edges, SLOPE)
        inputs = (values, of_sources, of_rows) if has_rows else (values, of_sources)
        results.append((out.detach(), *torch.autograd.grad(out.sin().sum(), inputs)))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    given_operands, given_edges = scored(1, 500, 400, 5000, 3)
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        leaves = [operand.float().requires_grad_() for operand in given_operands]
        out = segment_attention(*leaves, *given_edges, SLOPE)
        found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_operands_that_do_not_fit_are_named() -> None:
    (values, of_sources, of_rows), edges = scored(1, 3, 4, 9, 2)
    with pytest.raises(ValueError, match=r"scores of sources are \(3, 2\): must be \(4, heads\)"):
        segment_attention(values, of_sources[:3], of_rows, *edges, SLOPE)
    with pytest.raises(ValueError, match=r"scores of rows are \(4, 2\): must be \(3, heads\)"):
        segment_attention(values, of_sources, of_sources, *edges, SLOPE)
    with pytest.raises(ValueError, match="scores of 4 heads: must divide the 6 columns"):
        segment_attention(values, of_sources.repeat(1, 2), of_rows.repeat(1, 2), *edges, SLOPE)
