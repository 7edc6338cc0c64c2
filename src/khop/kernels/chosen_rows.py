"""Chosen edges of a graph, and chosen rows of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from khop.kernels.csc import Csc


def chosen_edges(csc: Csc, positions: Tensor) -> Csc:
    """Return only the edges at int64 positions, which must ascend; rows keep their order."""
    csc.check_rows()
    indptr = torch.searchsorted(positions, csc.indptr)
    return Csc(indptr, csc.indices[positions], csc.num_sources)


class ChosenRows(Mapping[str, Tensor]):
    """Columns by name with only the rows at int64 positions, each gathered once. Threads may share it."""

    def __init__(self, columns: Mapping[str, Tensor], positions: Tensor) -> None:
        self._columns = columns
        self._positions = positions
        self._taken: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._taken:
            self._taken[name] = self._columns[name][self._positions]
        return self._taken[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns  # without gathering its rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
