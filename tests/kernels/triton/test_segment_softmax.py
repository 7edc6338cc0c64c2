"""Softmax by Triton, forward and backward, has the bits of the CPU core."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.segment_attention import segment_softmax
from support.triton_rows import DEVICE
from support.triton_segments import DTYPES, FEW, Edges, assert_same_bits, by_triton, some_edges, with_gradient


@FEW
@given(edges=some_edges(widths=(1, 3, 4)), spread=st.sampled_from([1, 300]))
def test_results_and_gradients_are_those_of_the_core(edges: Edges, spread: int) -> None:
    scores = (edges.values(edges.indices.numel()).double() * spread).to(edges.dtype)
    operands = scores, edges.values(scores.shape[0], seed=1), edges.indptr
    expected = with_gradient(segment_softmax, *operands)
    with by_triton():
        found = with_gradient(segment_softmax, *(operand.to(DEVICE) for operand in operands))
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a.cpu(), b)


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
