"""Maxima by Triton, forward and backward, have the bits of the CPU core."""

from __future__ import annotations

import torch
from hypothesis import given

from khop.kernels.segment import segment_max
from support.triton_rows import DEVICE
from support.triton_segments import FEW, Edges, assert_same_bits, by_triton, some_edges, with_gradient


@FEW
@given(edges=some_edges())
def test_results_and_gradients_are_those_of_the_core(edges: Edges) -> None:
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
