"""Rows of a table in pieces, each with its place in the input for errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import converted
from khop.importing.file_schema import FileTable
from khop.importing.packages import pa, reading
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
_VALID: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # columns of tables that have been checked


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


def read_pieces(table: Table, columns: Sequence[str]) -> Iterator[Piece]:
    """Yield the pieces of a table, checked. All who read tables call this.

    An error of the package that reads is a ValueError with the file, and so are text that is not UTF-8 and
    offsets beyond their buffer, with the row. Columns are checked in the first complete pass over them.
    """
    valid = _VALID.setdefault(table, set())
    unchecked = [column for column in columns if column not in valid]
    with reading(table.name, "correct it, or write it again"):
        for piece in table.pieces(columns):
            yield partial(_checked, piece, table.name, unchecked)
    valid.update(columns)


def _checked(piece: Piece, name: str, columns: Sequence[str]) -> Rows:
    with reading(name, "correct it, or write it again"):
        rows = piece()
        for column in columns:
            array = rows.column(column)
            try:
                _validated(array)
            except pa.ArrowInvalid as error:
                if "UTF8" not in str(error):
                    raise
                key = f"the column {column!r}"
                converted(array, _validated, key, rows.row, "invalid UTF-8; correct the row")
    return rows


def _validated(array: Any) -> None:
    array.validate(full=True)


def no_rows(table: Table, columns: Sequence[str]) -> Rows:
    """Return a piece without rows, with the types of the columns."""
    schema = pa.schema([table.schema.field(name) for name in columns])
    return Rows(pa.RecordBatch.from_pylist([], schema=schema), Place(table.name))


def check_columns(table: Table, wanted: dict[str, str]) -> None:
    """Raise ValueError unless all columns exist; `wanted` maps each to its key in the spec."""
    there = list(table.schema.names)
    for column, key in wanted.items():
        if column in there:
            continue
        lacking = table.lacking.get(column) if isinstance(table, FileTable) else None
        if lacking is not None:
            raise ValueError(
                f"{key}: no column {column!r} in {lacking}, and other files have it; add it to {lacking}"
            )
        raise ValueError(f"{key}: no column {column!r} in {table.name}; {_near(column, there)}")


def _near(column: str, there: Sequence[str]) -> str:
    """Return a hint to the columns that exist, or to the delimiter of a file that seems to have only one."""
    delimiter = next((one for one in ";|\t," if len(there) == 1 and one in there[0]), None)
    if delimiter is None:
        return nearest(column, there)
    return f"the first row has the one field {there[0]!r}; give delimiter = {json.dumps(delimiter)}"
