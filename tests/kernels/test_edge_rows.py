"""Ends of edges, on the CPU and with unused entries on a device, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.kernels.segment import edge_rows, rows_of_destinations, rows_of_sources, searched_rows
from support.host_reads import counting
from support.padded_batches import UNUSED
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

INDPTR, INDICES = torch.tensor([0, 2, 2, 3, 6]), torch.tensor([4, 0, 1, 4, 4, 2], dtype=torch.int32)
ROWS = [0, 0, 2, 3, 3, 3]


def given(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
    """Rows, and the gradients of edges."""
    random = torch.Generator().manual_seed(1)
    rows, gradient = (torch.randn(n, 3, generator=random, dtype=torch.float64) for n in (count, 6))
    return rows.to(dtype).requires_grad_(), gradient.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spare", [0, 4])
def test_rows_of_edges_and_their_gradients(dtype: torch.dtype, spare: int) -> None:
    """Unused entries add nothing, if their gradient is 0."""
    indptr, indices = INDPTR.to(DEVICE), torch.cat([INDICES, INDICES.new_full((spare,), UNUSED)]).to(DEVICE)
    for count, places in ((4, torch.tensor(ROWS)), (5, INDICES.long())):
        rows, gradient = given(dtype, count)
        expected = rows[places]
        (of_rows,) = torch.autograd.grad(expected.double(), rows, gradient.double())
        longer = torch.cat([gradient, gradient.new_zeros(spare, 3)]).to(DEVICE)
        on_device = rows.detach().to(DEVICE).requires_grad_()
        with by_triton(), counting() as reads:
            if count == 4:
                found = rows_of_destinations(on_device, indptr, indices.numel())
            else:
                found = rows_of_sources(on_device, indptr, indices)
            (of_found,) = torch.autograd.grad(found, on_device, longer)
        assert reads == {}
        assert torch.equal(found[:6].cpu(), expected)
        torch.testing.assert_close(of_found.cpu(), of_rows)


def test_entries_behind_the_last_edge_have_no_row() -> None:
    assert edge_rows(INDPTR, 6).tolist() == searched_rows(INDPTR, 6).tolist() == ROWS
    with by_triton():
        assert edge_rows(INDPTR.to(DEVICE), 8).tolist() == [*ROWS, 4, 4]


def test_on_the_cpu_they_are_indexed() -> None:
    rows, _ = given(torch.float32, 5)
    assert torch.equal(rows_of_destinations(rows[:4], INDPTR, 6), rows[torch.tensor(ROWS)])
    assert torch.equal(rows_of_sources(rows, INDPTR, INDICES), rows[INDICES.long()])
