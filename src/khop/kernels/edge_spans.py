"""Passes over edges by destination in pieces of bounded size, however many edges a row has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST = 1 << 18


@dataclass(frozen=True, eq=False)
class EdgeSpan:
    """Consecutive edges of consecutive rows. The first and the last row may have others too."""

    first: int  # position of the first edge
    end: int
    first_row: int
    counts: Tensor  # int64 (rows): edges of each row in the span

    def per_edge(self, values: Tensor) -> Tensor:
        """Return for each edge the value of its row; `values` has one per row of the span."""
        return torch.repeat_interleave(values, self.counts, output_size=self.end - self.first)

    @property
    def rows(self) -> slice:
        """The rows of the span."""
        return slice(self.first_row, self.first_row + self.counts.numel())


def edge_spans(indptr: Tensor, most: int = _MOST) -> Iterator[EdgeSpan]:
    """Yield all edges, at most `most` at a time; `indptr` is that of a CSC, int64 (rows + 1), and sound."""
    for first in range(0, int(indptr[-1]), most):
        end = min(first + most, int(indptr[-1]))
        ends = torch.tensor([first, end - 1])
        first_row, last_row = (torch.searchsorted(indptr, ends, right=True) - 1).tolist()
        counts = indptr[first_row : last_row + 2].clamp(first, end).diff()
        yield EdgeSpan(first, end, first_row, counts)
