"""Edges turned around by Triton are those of the CPU core."""

from __future__ import annotations

import torch
from hypothesis import given

from khop.kernels.csc import Csc
from khop.kernels.segment import transpose, transpose_reference
from khop.kernels.triton.launch import launch
from khop.kernels.triton.transpose import AHEAD, EDGES, put_in_order
from support.triton_rows import DEVICE
from support.triton_segments import FEW, Edges, by_triton, some_edges

UNUSED = 1 << 30  # index behind the last edge: nothing may read it


def assert_same(found: Csc, expected: Csc) -> None:
    assert torch.equal(found.indptr.cpu(), expected.indptr)
    assert torch.equal(found.indices.cpu()[: expected.indices.numel()], expected.indices)


@FEW
@given(edges=some_edges(widths=(1,)))
def test_rows_of_each_source_are_in_edge_order_and_indices_behind_the_last_edge_are_ignored(
    edges: Edges,
) -> None:
    expected = transpose(edges.indptr, edges.indices, edges.num_sources)
    indices = torch.cat([edges.indices, edges.indices.new_full((5,), UNUSED)])
    assert_same(transpose_reference(edges.indptr, indices, edges.num_sources), expected)
    with by_triton():
        found = transpose(edges.indptr.to(DEVICE), indices.to(DEVICE), edges.num_sources)
    assert_same(found, expected)


def test_more_edges_than_a_program_has() -> None:
    indptr = torch.arange(0, 3 * EDGES + 1, 2)
    indices = torch.randint(7, (3 * EDGES,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    with by_triton():
        found = transpose(indptr.to(DEVICE), indices.to(DEVICE), 7)
    assert_same(found, transpose(indptr, indices, 7))


def test_the_order_in_which_edges_arrive_in_a_list_does_not_matter() -> None:
    indptr, indices = torch.tensor([0, 3, 3, 7]), torch.tensor([1, 0, 1, 1, 0, 1, 1], dtype=torch.int32)
    expected = transpose(indptr, indices, 2)
    listed = torch.tensor([4, 1, 5, 0, 6, 3, 2], dtype=torch.int32, device=DEVICE)
    rows = torch.full((7,), -1, dtype=torch.int32, device=DEVICE)
    turned = expected.indptr.to(DEVICE)
    operands = (indptr.to(DEVICE), indices.to(DEVICE), turned, listed, rows)
    launch(put_in_order, 1, rows, *operands, 3, 7, AHEAD=AHEAD, EDGES=EDGES)
    assert_same(Csc(turned, rows), expected)
