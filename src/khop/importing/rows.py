"""Rows of a table in pieces, each with its place in the input for errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from khop.importing.packages import pa
from khop.importing.read_spec import nearest


@dataclass(frozen=True)
class Place:
    """Origin of consecutive rows."""

    name: str  # the file, or the table
    group: int | None = None  # the row group of a Parquet file
    first: int = 0  # number of the first row, within the row group if there is one

    def row(self, number: int) -> str:
        """Return the place of a row in words; rows are counted from 1."""
        group = "" if self.group is None else f"row group {self.group}, "
        return f"{self.name}, {group}row {self.first + number + 1}"


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with some columns. Without `numbers` they follow each other from the place on."""

    batch: Any  # pyarrow.RecordBatch
    place: Place
    numbers: npt.NDArray[np.int64] | None = None  # (rows): the row of each, relative to the place

    def __len__(self) -> int:
        count: int = self.batch.num_rows
        return count

    def column(self, name: str) -> Any:
        """Return a column as a pyarrow array."""
        return self.batch.column(self.batch.schema.get_field_index(name))

    def row(self, number: int) -> str:
        """Return the place of a row in words."""
        return self.place.row(number if self.numbers is None else int(self.numbers[number]))

    def keep(self, mask: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows of a mask; they keep their places."""
        if mask.all():
            return self
        at = np.flatnonzero(mask)
        numbers = at if self.numbers is None else self.numbers[at]
        return Rows(self.batch.filter(pa.array(mask)), self.place, numbers)


Piece = Callable[[], Rows]  # from any thread


class Table(Protocol):
    """A table of the input. Its pieces come in the order of its rows."""

    @property
    def name(self) -> str:
        """Its files or its name, for errors."""
        ...

    @property
    def schema(self) -> Any:
        """Names and types of its columns, as a pyarrow schema."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of the files, for progress; 0 if unknown."""
        ...

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield readers of consecutive rows with these columns. Call them in this order, or on threads."""
        ...


def check_columns(table: Table, wanted: dict[str, str]) -> None:
    """Raise ValueError unless all columns exist; `wanted` maps each to its key in the spec."""
    there = list(table.schema.names)
    for column, key in wanted.items():
        if column not in there:
            raise ValueError(f"{key}: no column {column!r} in {table.name}; {nearest(column, there)}")
        if there.count(column) > 1:
            raise ValueError(f"{key}: {table.name} has {there.count(column)} columns {column!r}; rename one")
