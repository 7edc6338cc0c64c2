"""Rows of tables in pieces, each with its position in the input for error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from khop.data.tables.packages import converted, is_text, pa, plain, plain_schema, reading
from khop.data.tables.read_spec import nearest

NamedPath = tuple[str, Path]


@dataclass(frozen=True, eq=False)
class FileTable:
    """Files of one format, with their common columns."""

    files: Sequence[NamedPath]
    schema: Any
    lacking: Mapping[str, str]  # by column that some files lack: the first file without it
    key: str

    @property
    def name(self) -> str:
        """Name of the first file, and the number of others."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0][0]}{more}"


def same_schema(schemas: Sequence[tuple[str, Any]], key: str) -> tuple[Any, dict[str, str]]:
    """Return the common columns of all files, and for each other column the first file without it.

    Numbers have the widest of their types in the files. A column without values fits any type. ValueError if
    a column has different types, or occurs twice in a file.
    """
    schemas = [(name, plain_schema(schema)) for name, schema in schemas]
    for name, schema in schemas:
        if twice := [column for column in schema.names if schema.names.count(column) > 1]:
            raise ValueError(f"{key}: {name}: the column {twice[0]!r} occurs twice; rename one")
    first: dict[str, tuple[str, Any]] = {}  # with values: the file and the type
    for name, schema in schemas:
        for field in schema:
            if pa.types.is_null(field.type):
                continue
            of_file, dtype = first.setdefault(field.name, (name, field.type))
            if dtype != field.type and (_kind(dtype) is None or _kind(dtype) != _kind(field.type)):
                raise ValueError(
                    f"{key}: column {field.name!r} is {dtype} in {of_file} and {field.type} in {name}; "
                    "convert one of the files"
                )
    columns = dict.fromkeys(column for _, schema in schemas for column in schema.names)
    without = {c: [name for name, schema in schemas if c not in schema.names] for c in columns}
    everywhere = [column for column in columns if not without[column]]
    merged = [_merged([schema.field(name) for _, schema in schemas]) for name in everywhere]
    return pa.schema(merged), {column: names[0] for column, names in without.items() if names}


def _merged(fields: list[Any]) -> Any:
    """Return a column of all files: JSON if one is, with the common type."""
    metadata = next((one.metadata for one in fields if one.metadata), None)
    return pa.field(fields[0].name, _widest([one.type for one in fields]), metadata=metadata)


def _widest(types: list[Any]) -> Any:
    """Return the common type: the only one, or the widest integer or float."""
    types = [one for one in types if not pa.types.is_null(one)] or types[:1]
    if len(set(types)) == 1:
        return types[0]
    widest = {"integer": pa.int64(), "float": pa.float64()}
    return widest.get(_kind(types[0]) or "", types[0])


def _kind(dtype: Any) -> str | None:
    """Return the group of types that differ only in width or encoding."""
    if pa.types.is_dictionary(dtype):
        return _kind(dtype.value_type)
    if pa.types.is_integer(dtype):
        return "integer"
    if pa.types.is_floating(dtype):
        return "float"
    return "string" if is_text(dtype) else None


@dataclass(frozen=True)
class Place:
    """Origin of consecutive rows."""

    name: str  # the file, or the table
    group: int | None = None  # the row group of a Parquet file
    first: int = 0  # number of the first row, within the row group if there is one

    def row(self, number: int) -> str:
        """Describe the place of a row, counted from 1."""
        group = "" if self.group is None else f"row group {self.group}, "
        return f"{self.name}, {group}row {self.first + number + 1}"


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows with some columns. Without `numbers`, they are consecutive from the place on."""

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
        """Describe the place of a row."""
        return self.place.row(number if self.numbers is None else int(self.numbers[number]))

    def keep(self, mask: npt.NDArray[np.bool_]) -> TableRows:
        """Return the rows of a mask, with their places."""
        if mask.all():
            return self
        at = np.flatnonzero(mask)
        numbers = at if self.numbers is None else self.numbers[at]
        return TableRows(self.batch.filter(pa.array(mask)), self.place, numbers)


Piece = Callable[[], TableRows]  # from any thread
_VALID: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # checked columns by table


class Table(Protocol):
    """An input table. Its pieces are in the order of the rows."""

    @property
    def name(self) -> str:
        """Name of the table or its files, for errors."""
        ...

    @property
    def schema(self) -> Any:
        """Names and plain types of its columns, as a pyarrow schema."""
        ...

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield readers of consecutive rows with these columns. Call them in order, or on threads."""
        ...


def read_pieces(table: Table, columns: Sequence[str]) -> Iterator[Piece]:
    """Yield the checked pieces of a table, with plain types. All reads of tables call this.

    Errors of the reading package become a ValueError with the file; invalid UTF-8 and offsets beyond their
    buffer, one with the row. Columns are checked in the first complete pass over them.
    """
    valid, schema = _VALID.setdefault(table, set()), table.schema
    unchecked = [column for column in columns if column not in valid]
    with reading(table.name, "correct it, or write it again"):
        for piece in table.pieces(columns):
            yield partial(_checked, piece, table.name, unchecked, schema)
    valid.update(columns)


def _checked(piece: Piece, name: str, columns: Sequence[str], schema: Any) -> TableRows:
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
        arrays = [
            pa.nulls(len(array), schema.field(column).type) if pa.types.is_null(array.type) else plain(array)
            for column, array in zip(rows.batch.schema.names, rows.batch.columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=rows.batch.schema.names)
    return replace(rows, batch=batch)


def _validated(array: Any) -> None:
    """Raise ArrowInvalid for a damaged array. ASCII text is not decoded, which would take longer."""
    is_large = pa.types.is_large_string(array.type)
    if (is_large or pa.types.is_string(array.type)) and len(array) and array.buffers()[2] is not None:
        _, offsets, data = array.buffers()
        text = np.frombuffer(data, np.uint8)
        starts: npt.NDArray[Any] = np.frombuffer(offsets, np.int64 if is_large else np.int32)
        starts = starts[array.offset : array.offset + len(array) + 1]
        is_within = starts[0] >= 0 and starts[-1] <= len(text) and bool((starts[1:] >= starts[:-1]).all())
        if is_within and text.max(initial=0) < 128:
            return
    array.validate(full=True)


def no_rows(table: Table, columns: Sequence[str]) -> TableRows:
    """Return an empty piece with the types of the columns."""
    schema = pa.schema([table.schema.field(name) for name in columns])
    return TableRows(pa.RecordBatch.from_pylist([], schema=schema), Place(table.name))


def check_columns(table: Table, wanted: dict[str, str]) -> None:
    """Raise ValueError unless all columns exist; `wanted` maps each to its key in the spec."""
    there = list(table.schema.names)
    for column, key in wanted.items():
        if column in there:
            continue
        lacking = table.lacking.get(column) if isinstance(table, FileTable) else None
        if lacking is not None:
            raise ValueError(
                f"{key}: no column {column!r} in {lacking}, but other files have it; add it to {lacking}"
            )
        raise ValueError(f"{key}: no column {column!r} in {table.name}; {_near_row(column, there)}")


def _near_row(column: str, there: Sequence[str]) -> str:
    """Return a hint to the existing columns, or to the delimiter if a file seems to have only one column."""
    if there == ["0"]:  # without a header
        return 'each row has only one field; give the delimiter, such as delimiter = "\\t"'
    delimiter = next((one for one in ("::", *";|\t,") if len(there) == 1 and one in there[0]), None)
    if delimiter is None:
        return nearest(column, there)
    return f"the first row has only the field {there[0]!r}; give delimiter = {json.dumps(delimiter)}"
