"""Counts of a batch, which kernels write and the host reads at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_WIDTH = 4  # int32 numbers per cell: 16 bytes, so that kernels are compiled for one alignment


@dataclass(frozen=True)
class Cell:
    """A count on the device, and its place among all."""

    value: Tensor  # int32 (1)
    number: int


@dataclass(frozen=True)
class Counts:
    """The counts of one batch on the host."""

    overflowed: int  # the stamp of the last batch that exceeded a capacity
    values: list[int]

    def __getitem__(self, cell: Cell) -> int:
        return self.values[cell.number]


class Cells:
    """Counts on one device, 0 at first, and the stamp of the last batch that exceeded a capacity."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.values = torch.zeros(most + 1, _WIDTH, dtype=torch.int32, device=device)
        self.overflow = self.values[0].view(torch.int64)[:1]  # int64 (1)
        self._taken = 0

    def take(self) -> Cell:
        """Return a cell that is not in use."""
        self._taken += 1
        return Cell(self.values[self._taken, :1], self._taken)


def counts_of(values: Tensor) -> Counts:
    """Return the counts in `Cells.values` or in a copy of them: one read."""
    first = [cell[0] for cell in values.tolist()]
    return Counts(first[0], first)  # stamps fit the lower half of `overflow`
