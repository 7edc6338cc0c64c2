"""Optional packages of an import: drivers, conversions of Arrow arrays, and error messages."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

INSTALL = "khop import needs pyarrow and duckdb: pip install pyarrow duckdb"

try:
    import duckdb
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError(f"{INSTALL} ({error})") from None

__all__ = ["INSTALL", "PACKAGE_ERRORS", "duckdb", "explained", "pa", "pa_csv", "pc", "pq", "reading"]

PACKAGE_ERRORS = (duckdb.Error, pa.lib.ArrowException)  # ArrowInvalid is a ValueError, too
_DAMAGE = (EOFError, UnicodeError, zipfile.BadZipFile, zlib.error)
_OF_FILE = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "is a folder",
    PermissionError: "is not readable for this user",
}
_REASONS = {
    r"Row #(\d+): Expected (\d+) columns, got (\d+)": r"row \1 has \3 fields, and the first row has \2",
    r"Expected (\d+) columns, got (\d+)": r"a row has \2 fields, and the first row has \1",
    r"In CSV column #(\d+): (?:Row #(\d+): )?.* invalid value '(.*)'": (
        r"the value '\3' in the column \1 is not a number"
    ),
    r"end of GZIP|Truncated compressed|[Uu]nexpected end|enough bytes": "is cut off",
    r"incorrect header check|Unknown frame desc": "is not compressed as its name says",
    r"Could not set lock|Conflicting lock|different configuration": "is open elsewhere for writing",
    r"database (?:table )?is locked": "is open elsewhere for writing",
    r"Could not convert string '(.*)' to (\w+)(?: when casting from source column (\w+))?": (
        r"has the value '\1' in the column \3, which is not of type \2"
    ),
    r"file system operations are disabled": "reads another file",
    r"no such table: (?:main\.)?(\S+)|Table with name (\S+) does not exist": (
        r"reads the table \1\2, which does not exist"
    ),
}  # fmt: skip


def connected(path: str = ":memory:", *, read_only: bool = False, **config: str | int) -> Any:
    """Return a connection of DuckDB, by default in memory; `config` has its settings.

    Without a file as its main module (a notebook, `python -c`), DuckDB would print a progress bar on stdout.
    """
    connection = duckdb.connect(path, read_only=read_only, config={**config})
    connection.execute("SET enable_progress_bar = false")
    return connection


class TableFault(ValueError):
    """A fault in a table, with two remedies: one in the file, and one in the spec of an import."""

    def __init__(self, problem: str, remedy: str, of_spec: str) -> None:
        super().__init__(problem, remedy, of_spec)
        self.in_file = f"{problem}; {remedy}"
        self.of_spec = of_spec

    def __str__(self) -> str:
        return f"{self.in_file}, or {self.of_spec}"


@contextmanager
def without_spec() -> Iterator[None]:
    """Name only remedies in the file, because the user gives a file without a spec."""
    try:
        yield
    except TableFault as fault:
        raise ValueError(fault.in_file) from None


@contextmanager
def reading(place: str, remedy: str, reason: str = "is damaged, or has another format") -> Iterator[None]:
    """Replace an error of a package by a ValueError with place, reason and remedy.

    `place` is such as "nodes.user.files: users.parquet". `reason` is for unknown errors of the package. Other
    errors, such as a full disk, are raised unchanged.
    """
    try:
        yield
    except (MemoryError, duckdb.OutOfMemoryException):
        raise MemoryError(place) from None
    except (*PACKAGE_ERRORS, *_DAMAGE, OSError) as error:
        of_file = next((text for kind, text in _OF_FILE.items() if isinstance(error, kind)), None)
        if isinstance(error, OSError) and error.errno is not None and of_file is None:
            raise
        raise explained(error, place, remedy, of_file or reason) from None


def explained(
    error: Exception, place: str, remedy: str, reason: str, reasons: Mapping[str, str] | None = None
) -> ValueError:
    """Return the text for an error of a package; `reason` is for unknown errors."""
    known = _REASONS if reasons is None else reasons
    found = ((re.search(pattern, str(error)), text) for pattern, text in known.items())
    reason = next((match.expand(text) for match, text in found if match), reason)
    return ValueError(f"{place}: {reason}; {remedy}")


_KINDS = {"postgresql": "Postgres", "sqlite": "SQLite"}


def driver(kind: str) -> Any:
    """Return the DBAPI module of the driver for `postgresql` or `sqlite`."""
    try:
        return import_module(f"adbc_driver_{kind}.dbapi")
    except ImportError as error:
        raise ValueError(
            f"{_KINDS[kind]} needs a package that is missing: pip install adbc-driver-{kind} ({error})"
        ) from None


_WIDEST = 100  # characters of a value in an error


def is_text(dtype: Any) -> bool:
    """Return True for string types."""
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


JSON_TEXT = {b"khop": b"JSON"}  # metadata of a column with objects or arrays of JSON as text


def plain_type(dtype: Any) -> Any:
    """Return the type as which khop reads a type: without views, run-end encoding and extensions.

    UUIDs are text. Only text has dictionaries.
    """
    if isinstance(dtype, pa.BaseExtensionType):
        return pa.large_string() if _is_uuid(dtype) else plain_type(dtype.storage_type)
    if pa.types.is_string_view(dtype):
        return pa.large_string()
    if pa.types.is_binary_view(dtype):
        return pa.large_binary()
    if pa.types.is_run_end_encoded(dtype):
        return plain_type(dtype.value_type)
    if pa.types.is_dictionary(dtype):
        value = plain_type(dtype.value_type)
        return pa.dictionary(dtype.index_type, value) if is_text(value) else value
    if pa.types.is_list_view(dtype) or pa.types.is_list(dtype):
        return pa.list_(plain_type(dtype.value_type))
    if pa.types.is_large_list_view(dtype) or pa.types.is_large_list(dtype):
        return pa.large_list(plain_type(dtype.value_type))
    return dtype


def plain_schema(schema: Any) -> Any:
    """Return a schema with the types as which khop reads its columns. Columns of JSON have JSON_TEXT."""
    return pa.schema([
        pa.field(one.name, plain_type(one.type), metadata=JSON_TEXT if _is_json(one) else None)
        for one in schema
    ])  # fmt: skip


def plain(array: Any) -> Any:
    """Return an array as its plain type."""
    dtype, wanted = array.type, plain_type(array.type)
    if dtype == wanted:
        return array
    if isinstance(dtype, pa.BaseExtensionType):
        return _uuid_texts(array.storage) if _is_uuid(dtype) else plain(array.storage)
    if pa.types.is_run_end_encoded(dtype):
        return plain(pc.run_end_decode(array))
    if pa.types.is_dictionary(dtype):
        values = plain(array.dictionary)
        is_kept = pa.types.is_dictionary(wanted)
        return (
            pa.DictionaryArray.from_arrays(array.indices, values) if is_kept else values.take(array.indices)
        )
    return _plain_lists(array, wanted) if pa.types.is_nested(dtype) else array.cast(wanted)


def _plain_lists(array: Any, wanted: Any) -> Any:
    """Return lists, or list views, as lists of plain values. Arrow's casts of list views lose nulls."""
    is_large = pa.types.is_large_list(wanted)
    lengths = numpy_of(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64() if is_large else pa.int32())
    kind, nulls = pa.LargeListArray if is_large else pa.ListArray, array.is_null()
    return kind.from_arrays(offsets, plain(array.flatten()), mask=nulls if array.null_count else None)


def _is_json(field: Any) -> bool:
    name = getattr(field.type, "extension_name", "")
    return bool(name == "arrow.json" or (field.metadata or {}).items() >= JSON_TEXT.items())


def _is_uuid(dtype: Any) -> bool:
    return bool(dtype.extension_name == "arrow.uuid")


def _uuid_texts(stored: Any) -> Any:
    """Return UUIDs, of 16 bytes each, as text."""
    texts = [None if value is None else str(UUID(bytes=value)) for value in stored.to_pylist()]
    return pa.array(texts, pa.large_string())


def without_blanks(array: Any) -> Any:
    """Strip blanks from text; return other values unchanged.

    Most text is ASCII without blanks, which a check finds a hundred times as fast.
    """
    if not is_text(array.type):
        return array
    data = array.buffers()[-1]
    letters = np.frombuffer(b"" if data is None else data, np.uint8)
    is_plain = letters.min(initial=255) > ord(" ") and letters.max(initial=0) < 128
    return array if is_plain else pc.utf8_trim_whitespace(array)


def numpy_of(array: Any) -> npt.NDArray[Any]:
    """Return the values of an array as `Array.to_numpy` does; without a copy where possible.

    Null numbers become NaN. Unlike `to_numpy`, does not import pandas for numbers and booleans without nulls,
    which takes half a second of CPU time.
    """
    if pa.types.is_boolean(array.type) and not array.null_count:
        return numpy_of(array.cast(pa.uint8())).view(np.bool_)
    if not pa.types.is_floating(array.type) and not pa.types.is_integer(array.type):
        values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values
    if not array.null_count:
        return np.from_dlpack(array)
    numbers = array if pa.types.is_floating(array.type) else array.cast(pa.float64(), safe=False)
    values = np.full(len(array), np.nan, numbers.type.to_pandas_dtype())
    values[numpy_of(array.is_valid())] = np.from_dlpack(numbers.drop_null())
    return values


def converted(
    array: Any,
    convert: Callable[[Any], Any],
    key: str,
    where: Callable[[int], str],
    reason: str,
    of_spec: str = "",
) -> Any:
    """Return `convert(array)`; ValueError with the first row that cannot be converted, and its value.

    `convert` is elementwise. `key` names the column, `where` a row. `reason` has a remedy after "; ".
    """
    try:
        return convert(array)
    except PACKAGE_ERRORS:
        row = first_failing(len(array), lambda first, count: convert(array.slice(first, count)))
    raise _fault(f"{where(row)}: {key} is {shown(array[row])}: {reason}", of_spec)


def _fault(text: str, of_spec: str) -> ValueError:
    """Return the error of a problem and a remedy, separated by "; ", and of a remedy in the spec, if any."""
    problem, _, remedy = text.rpartition("; ")
    return TableFault(problem, remedy, of_spec) if of_spec else ValueError(text)


def refuse(
    wrong: npt.NDArray[np.bool_],
    where: Callable[[int], str],
    text: Callable[[int], str] | str,
    of_spec: str = "",
) -> None:
    """Raise ValueError for the first wrong row: place, a text that may depend on the row, remedies."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _fault(f"{where(row)}: {text if isinstance(text, str) else text(row)}", of_spec)


def refuse_null(array: Any, where: Callable[[int], str], text: str, of_spec: str = "") -> None:
    """Raise ValueError for the first null of an array."""
    if array.null_count:
        refuse(numpy_of(array.is_null()), where, text, of_spec)


def first_failing(rows: int, run: Callable[[int, int], object]) -> int:
    """Return the first row for which `run(first, count)` raises an error of a package, as for all rows."""
    low, high = 0, rows  # rows before `low` are good, one before `high` is bad
    while high - low > 1:
        middle = (low + high) // 2
        try:
            run(low, middle - low)
            low = middle
        except PACKAGE_ERRORS:
            high = middle
    return low


def shown(scalar: Any) -> str:
    """Return a value for errors, truncated to a line."""
    try:
        value = scalar.as_py()
    except UnicodeDecodeError:
        value = scalar.cast(pa.binary()).as_py() if pa.types.is_string(scalar.type) else "..."
    text = repr(value if isinstance(value, str | bytes | int | float | None) else str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
