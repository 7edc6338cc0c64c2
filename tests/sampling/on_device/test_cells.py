"""Counts of a batch: each cell is read at its place, beside the stamp of the last overflow."""

from __future__ import annotations

from khop.sampling.on_device.cells import Cells, counts_of
from support.triton_rows import DEVICE


def test_cells_are_apart_and_read_at_once() -> None:
    cells = Cells(5, DEVICE)
    taken = [cells.take() for _ in range(5)]
    assert counts_of(cells.values).values == [0] * 6
    for number, cell in enumerate(taken, start=1):
        cell.value.fill_(number * 11)
    cells.overflow.fill_((1 << 31) - 1)
    counts = counts_of(cells.values.clone())
    assert [counts[cell] for cell in taken] == [11, 22, 33, 44, 55]
    assert counts.overflowed == (1 << 31) - 1
    assert all(cell.value.data_ptr() % 16 == 0 for cell in taken)
