"""Chosen rows of columns, gathered on first access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor


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
