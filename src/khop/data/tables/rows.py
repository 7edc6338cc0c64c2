"""Rows of tables in pieces, each with its position in the input for error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from khop.data.tables.packages import TableFault, converted, is_text, pa, plain, plain_schema, reading
from khop.data.tables.read_spec import nearest

NamedPath = tuple[str, Path]


@dataclass(frozen=True, eq=False)
class FileTable:
    """Files of one format, with their common columns."""

    files: Sequence[NamedPath]
    schema: Any
    lacking: Mapping[str, str]  # by column that some files lack: the first file without it
    mixed: Mapping[str, str]  # by column of several types: text with each type and its first file
    key: str

    @property
    def name(self) -> str:
        """Name of the first file, and the number of others."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0][0]}{more}"


def same_schema(schemas: Sequence[tuple[str, Any]], key: str) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Return the common columns of all files, with types that hold the values of all files.

    A column for which there is no such type is left out. A column without values fits any type. Also returns
    two mappings from columns, for errors: the first file without a column that others have, and the types of
    a column with several. ValueError if a column occurs twice in a file.
    """
    schemas = [(name, plain_schema(schema)) for name, schema in schemas]
    for name, schema in schemas:
        if twice := [column for column in schema.names if schema.names.count(column) > 1]:
            raise ValueError(f"{key}: {name}: the column {twice[0]!r} occurs twice; rename one")
    columns = dict.fromkeys(column for _, schema in schemas for column in schema.names)
    without = {c: [name for name, schema in schemas if c not in schema.names] for c in columns}
    fields, mixed = list[Any](), dict[str, str]()
    for column in columns:
        of_files = {name: schema.field(column) for name, schema in schemas if column in schema.names}
        kinds = dict[Any, str]()  # the first file of each type
        for name, field in of_files.items():
            if not pa.types.is_null(field.type):
                kinds.setdefault(field.type, name)
        common = reduce(_common, kinds) if kinds else pa.null()
        if len(kinds) > 1:
            mixed[column] = " and ".join(f"{dtype} in {file}" for dtype, file in kinds.items())
        if common is not None and not without[column]:
            metadata = next((one.metadata for one in of_files.values() if one.metadata), None)
            fields.append(pa.field(column, common, metadata=metadata))
    lacking = {column: names[0] for column, names in without.items() if names}
    return pa.schema(fields), lacking, mixed


def _common(left: Any, right: Any) -> Any:
    """Return the type that holds the values of both, as Arrow does; None if there is none.

    Text is read in its encoding, so the first type stands for all of text.
    """
    if left is None:
        return None
    if _is_text(left) and _is_text(right):
        return left
    both = [pa.schema([("values", dtype)]) for dtype in (left, right)]
    try:
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _is_text(dtype: Any) -> bool:
    return is_text(dtype.value_type if pa.types.is_dictionary(dtype) else dtype)


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


def pieces_of(name: str, batches: Iterable[Any]) -> Iterator[Piece]:
    """Yield the record batches of a file or a table, which have been read, with the places of their rows."""
    first = 0
    for batch in batches:
        yield partial(TableRows, batch, Place(name, None, first))
        first += batch.num_rows


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
        names = rows.batch.schema.names
        arrays = [
            _as(schema.field(column).type, plain(array), column, rows)
            for column, array in zip(names, rows.batch.columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
    return replace(rows, batch=batch)


def _as(dtype: Any, array: Any, column: str, rows: TableRows) -> Any:
    """Return the values of a file as the common type of all files; ValueError if one would change."""
    if array.type == dtype or (_is_text(dtype) and _is_text(array.type)):
        return array
    if pa.types.is_null(dtype) or pa.types.is_null(array.type):
        return pa.nulls(len(array), dtype)
    reason = f"not exact as {dtype}, the common type of this column in all files; convert one of the files"
    return converted(array, lambda part: part.cast(dtype), f"the column {column!r}", rows.row, reason)


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
        mixed = table.mixed.get(column) if isinstance(table, FileTable) else None
        if mixed is not None:
            raise ValueError(f"{key}: column {column!r} is {mixed}; convert one of the files")
        lacking = table.lacking.get(column) if isinstance(table, FileTable) else None
        if lacking is not None:
            raise ValueError(
                f"{key}: no column {column!r} in {lacking}, but other files have it; add it to {lacking}"
            )
        problem = f"{key}: no column {column!r} in {table.name}"
        if there == ["0"]:  # without a header
            raise ValueError(
                f'{problem}; each row has only one field; give the delimiter, such as delimiter = "\\t"'
            )
        delimiter = next((one for one in ("::", *";|\t,") if len(there) == 1 and one in there[0]), None)
        if delimiter is None:
            raise ValueError(f"{problem}; {nearest(column, there)}")
        raise TableFault(
            f"{problem}; the first row has only the field {there[0]!r}",
            "separate fields by commas",
            f"give delimiter = {json.dumps(delimiter)}",
        )
