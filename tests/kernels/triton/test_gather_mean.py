"""Means of table rows by Triton have the bits of a gather and a mean by the CPU core."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from kernels.triton.device_rows import DEVICE
from kernels.triton.segments import FEW, Edges, assert_same_bits, by_triton, some_edges
from khop.kernels.gather import Column, Copies
from khop.kernels.gather_mean import gather_mean

ROWS = 90


def placed(column: Column) -> Column:
    """The column on the device, with copies of a third of its rows; the other copies are of no row."""
    (table,) = column.pieces
    slots = torch.where(torch.arange(ROWS) % 3 == 0, torch.arange(ROWS) // 3, -1).int()
    copies = Copies(slots.to(DEVICE), table[::3].to(DEVICE))
    scales = None if column.scales is None else column.scales.to(DEVICE)
    return Column(table.to(DEVICE), as_float32=column.as_float32, scales=scales, copies=copies)


def nodes_of(edges: Edges) -> Tensor:
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))[: edges.num_sources]


@FEW
@given(edges=some_edges(widths=(1, 3, 16, 100)))
def test_means_are_those_of_the_core(edges: Edges) -> None:
    column, nodes = Column(edges.values(ROWS)), nodes_of(edges)
    expected = gather_mean(column, nodes, edges.indptr, edges.indices)
    with by_triton():
        found = gather_mean(
            placed(column), nodes.to(DEVICE), edges.indptr.to(DEVICE), edges.indices.to(DEVICE)
        )
    assert_same_bits(found.cpu(), expected)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.uint8], ids=str)
def test_means_of_small_numbers_are_float32(dtype: torch.dtype, scaled: bool) -> None:
    random = torch.Generator().manual_seed(5)
    table = (torch.randn(ROWS, 20, generator=random) * 40).to(dtype)
    column = Column(table, as_float32=True, scales=torch.linspace(0.1, 3, 20) if scaled else None)
    nodes = torch.randperm(ROWS, generator=random)[:30]
    indptr = torch.tensor([0, 7, 7, 8, 30])
    indices = torch.randint(30, (30,), generator=random, dtype=torch.int32)
    expected = gather_mean(column, nodes, indptr, indices)
    assert expected.dtype == torch.float32
    with by_triton():
        found = gather_mean(placed(column), nodes.to(DEVICE), indptr.to(DEVICE), indices.to(DEVICE))
    assert_same_bits(found.cpu(), expected)
