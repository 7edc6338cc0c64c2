"""Files of a table: paths found by globs, and readers of CSV, JSON lines, Parquet and Arrow.

DuckDB reads CSV and JSON lines, in the order of their lines; all columns of a CSV file are text. A piece is a
row group of a Parquet file, or a record batch of an Arrow file. Tables in memory are read through Arrow's
stream interface.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path
from threading import Thread, local
from typing import Any

import numpy as np

from khop.data.tables.packages import (
    JSON_TEXT,
    PACKAGE_ERRORS,
    TableFault,
    connected,
    duckdb,
    numpy_of,
    pa,
    pc,
    plain_schema,
    pq,
    reading,
    refuse,
)
from khop.data.tables.read_spec import nearest
from khop.data.tables.rows import FileTable, NamedPath, Piece, Place, Table, TableRows, pieces_of, same_schema
from khop.graph.remote import is_url, matches, with_urls

BATCH_ROWS = 1 << 17
_CHUNK = 1 << 20  # bytes
_START = 1 << 8  # bytes, enough for signatures
_MIXED = re.compile("reached an invalid state|unterminated quote")  # also for mixed line ends
_INVALID = ("invalid UTF-8", "save the file as UTF-8", 'give its encoding, as encoding = "latin-1"')
_PROBLEMS = {
    "unterminated quote": "a quote is not closed; correct the line",
    "Maximum line size": "the line is longer than 2 MB, or a quote is not closed; correct the line",
}
_WEB_PAGE = re.compile(rb"\s*<(!doctype +)?html\b", re.IGNORECASE)
_LFS = b"version https://git-lfs"
_SIGNATURES = {
    _LFS: "is a pointer of Git LFS in place of the file; fetch the file: git lfs pull",
    b"\x1f\x8b": "is compressed; rename it to end in {}.gz",
    b"\x28\xb5\x2f\xfd": "is compressed; rename it to end in {}.zst",
    b"\xfd7zXZ\0": "is compressed by xz; unpack it",
    b"BZh": "is compressed by bzip2; unpack it",
    b"PAR1": "is a Parquet file; rename it to end in .parquet",
    b"ARROW1": "is an Arrow file; rename it to end in .arrow",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; unpack it, or save the sheet as CSV",
}
_UNICODE = {b"\xff\xfe\0\0": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@dataclass(frozen=True)
class Dialect:
    """Dialect of CSV files."""

    header: str = "yes"
    delimiter: str | None = None  # None: a tab for .tsv and .tab, else a comma
    encoding: str = "utf-8"

    def of(self, name: str) -> str:
        """Return the delimiter of a file."""
        is_tabs = re.search(r"\.(tsv|tab)(\.(gz|zst))?$", name, re.IGNORECASE)
        return self.delimiter or ("\t" if is_tabs else ",")

    @property
    def is_utf8(self) -> bool:
        """True for UTF-8, with or without a byte order mark."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig")


@dataclass(frozen=True, eq=False)
class CsvTable(FileTable):
    """Rows of CSV files. Types are never guessed: "007" stays text."""

    names: Sequence[Sequence[str]]  # columns of each file, in its order
    dialect: Dialect

    @classmethod
    def open(cls, files: Sequence[NamedPath], dialect: Dialect, key: str) -> CsvTable:
        """Read the first row of all files."""
        names = [_columns(name, path, dialect, f"{key}: {name}") for name, path in files]
        schemas = [
            (name, pa.schema([(column, pa.string()) for column in columns]))
            for (name, _), columns in zip(files, names, strict=True)
        ]
        return cls(tuple(files), *same_schema(schemas, key), key, tuple(names), dialect)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have already been read: a compressed file has only one reader."""
        for (name, path), there in zip(self.files, self.names, strict=True):
            for piece in pieces_of(name, self._batches(name, path, there, columns) if there else ()):
                _refuse_nul(piece(), self.key)
                yield piece

    def first_value(self, column: str) -> str:
        """Return the text of a column in the first row; "" if it is not in the first lines."""
        (name, path), names = self.files[0], list(self.names[0])
        place = f"{self.key}: {name}"
        with reading(place, "write it again"), pa.input_stream(str(path), compression=codec(name)) as stream:
            text = stream.read(1 << 16).decode(self.dialect.encoding, "replace")
        lines = [line for line in text.splitlines()[:-1] if line][self.dialect.header == "yes" :]
        try:
            fields = first_row(lines[0], self.dialect.of(name)) if lines else []
        except csv.Error:
            return ""
        return fields[names.index(column)] if column in names[: len(fields)] else ""

    def _batches(self, name: str, path: Path, there: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows. If line ends seem to be mixed, the rest is read with translated ones."""
        place, done = f"{self.key}: {name}", 0
        for is_mixed in (False, True):
            is_plain = self.dialect.is_utf8 and not codec(name) and not is_mixed
            text = _decoded(name, path, self.dialect, place, is_mixed)
            known = done
            try:
                with nullcontext(pattern_of(path)) if is_plain else _piped(text) as source:
                    for batch in self._read(source, name, there, columns):
                        new = batch.slice(min(known, batch.num_rows))
                        known -= batch.num_rows - new.num_rows
                        done += new.num_rows
                        yield from [new] if new.num_rows else []
                return
            except (*PACKAGE_ERRORS, OSError) as error:
                if is_mixed or not _MIXED.search(str(error)):
                    with reading(place, "correct the file", "is not CSV"):
                        raise _explained(error, place, there) from None

    def _read(self, source: str, name: str, there: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of a file from DuckDB. Columns are numbered, because SQL ignores case in names."""
        chosen = ", ".join(f"c{there.index(column)}" for column in columns)
        types = ", ".join(f"c{at}: 'VARCHAR'" for at in range(len(there)))
        query = (
            f"SELECT {chosen} FROM read_csv(?, auto_detect=false, "
            f"header={'true' if self.dialect.header == 'yes' else 'false'}, "
            f"delim={literal(self.dialect.of(name))}, "
            "quote='\"', escape='\"', nullstr='', strict_mode=true, null_padding=false, "
            f"hive_partitioning=false, compression='none', columns={{{types}}})"
        )
        with (
            connected(threads=2, memory_limit="1GB") as connection,
            closing(connection.sql(query, params=[source]).to_arrow_reader(BATCH_ROWS)) as reader,
        ):
            yield from (_as_text(batch, columns) for batch in reader)


def quoted(name: str) -> str:
    """Quote an SQL name."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _as_text(batch: Any, names: Sequence[str]) -> Any:
    """Return the columns as plain strings, because DuckDB may return string views."""
    arrays = [column if column.type == pa.string() else column.cast(pa.string()) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _refuse_nul(rows: TableRows, key: str) -> None:
    """Raise ValueError for a NUL: the file is damaged, or has another encoding."""
    for name, array in zip(rows.batch.schema.names, rows.batch.columns, strict=True):
        data = array.buffers()[2]
        if data is None or np.frombuffer(data, np.uint8).min(initial=255) > 0:
            continue
        # The buffer may be longer than the text.
        found = numpy_of(pc.fill_null(pc.match_substring(array, "\0"), False))
        text = f"{key}: the column {name!r} has a NUL byte; correct the row"
        refuse(found, rows.row, text, "give the encoding of the file")


def pattern_of(path: Path) -> str:
    """Escape *, ? and [ in a path for DuckDB."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(path))


@contextmanager
def _piped(chunks: Iterator[bytes]) -> Iterator[str]:
    """Write chunks to a pipe on a thread, and yield its path. An error of the chunks is raised at the end."""
    end, start = os.pipe()
    failed: list[Exception] = []

    def write() -> None:
        try:
            with os.fdopen(start, "wb") as pipe:
                pipe.writelines(chunks)
        except BrokenPipeError:
            pass  # the reader has stopped
        except (ValueError, OSError, MemoryError) as error:
            failed.append(error)

    writer = Thread(target=write, daemon=True)
    writer.start()
    try:
        yield f"/dev/fd/{end}"
    finally:
        os.close(end)
        writer.join()
        if failed:  # it may be the cause of the reader's error
            raise failed[0] from None


def _decoded(name: str, path: Path, dialect: Dialect, place: str, translates: bool) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8; with `translates`, all lines end in LF."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(dialect.encoding)(), translates)
    line, chunk = 1, b"-"
    with reading(place, "write it again"), pa.input_stream(str(path), compression=codec(name)) as stream:
        while chunk:
            chunk = stream.read(_CHUNK)
            if dialect.is_utf8 and not translates:
                yield chunk  # DuckDB decodes it
                continue
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _undecodable(error, dialect, place, line) from None
            line += text.count("\n")
            yield text.encode()


def _undecodable(error: UnicodeDecodeError, dialect: Dialect, place: str, line: int) -> ValueError:
    """Return the error for undecodable text that begins in a line."""
    line += error.object[: error.start].count(b"\n")
    if dialect.is_utf8:
        return _not_utf8(f"{place}, line {line}")
    return ValueError(f"{place}, line {line}: invalid {dialect.encoding}; give the encoding of the file")


def _not_utf8(place: str) -> ValueError:
    problem, remedy, of_spec = _INVALID
    return TableFault(f"{place}: {problem}", remedy, of_spec)


def codec(name: str) -> str | None:
    """Return the compression of a file, by its name."""
    return {"gz": "gzip", "zst": "zstd"}.get(name.lower().rpartition(".")[2])


def _columns(name: str, path: Path, dialect: Dialect, place: str) -> list[str]:
    """Return the names in the first row, or numbers if it is data; unnamed columns have numbers."""
    with reading(place, "write it again"), pa.input_stream(str(path), compression=codec(name)) as stream:
        start = stream.read(_CHUNK)
    problem = other_format(start, name)
    if problem is not None and dialect.is_utf8:
        raise ValueError(f"{place}: {problem}")
    unicode = next((name for mark, name in _UNICODE.items() if start.startswith(mark)), None)
    if unicode is not None and dialect.is_utf8:
        raise TableFault(f"{place}: is {unicode}", "save it as UTF-8", f'give encoding = "{unicode.lower()}"')
    try:
        text = codecs.getincrementaldecoder(dialect.encoding)().decode(start, final=len(start) < _CHUNK)
        first = first_row(text.removeprefix("\ufeff"), dialect.of(name))
    except UnicodeDecodeError as error:
        raise _undecodable(error, dialect, place, 1) from None
    except csv.Error:
        raise ValueError(
            f"{place}, line 1: not a row of CSV: a quote is not closed, or a field is longer than "
            f"{csv.field_size_limit():,} characters; correct the line"
        ) from None
    if any("\0" in column for column in first):
        raise TableFault(f"{place}, line 1: has a NUL byte", "correct the line", 'give encoding = "utf-16"')
    if dialect.header == "no":
        return [str(number) for number in range(len(first))]
    if not any(first):
        reason = "line 1 is empty" if text.strip() else "is empty"
        raise ValueError(f"{place}: {reason}; the first row must name the columns")
    columns = [column or str(number) for number, column in enumerate(first)]
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise TableFault(
            f"{place}, line 1: the column {twice[0]!r} occurs twice",
            "rename one in the first row",
            'give header = "no" if it is data',
        )
    return columns


def other_format(start: bytes, name: str) -> str | None:
    """Return the problem and remedy of a file that is not a table, by its first bytes; None for text."""
    if _WEB_PAGE.match(start):
        return "is a web page; download the file again"
    ending = Path(name).suffix
    for signature, problem in _SIGNATURES.items():
        if start.startswith(signature):
            is_twice = "{}" in problem and ending in (".gz", ".zst", ".bz2", ".lz4")
            return "is compressed twice; unpack it once" if is_twice else problem.format(ending)
    return None


def refuse_special(path: Path, place: str) -> None:
    """Raise ValueError for a broken link, and for a path that is neither a file nor a folder."""
    if path.is_symlink() and not path.exists():
        raise ValueError(
            f"{place} is a link to {os.readlink(path)}, which does not exist; fetch that file, or correct "
            "the link"
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{place} is not a regular file, but is read twice; save it as one")


def refuse_unreadable(path: Path, place: str) -> None:
    """Raise ValueError without permission, and for a pointer of Git LFS or a web page."""
    if not os.access(path, os.R_OK):
        raise ValueError(f"{place}: no permission to read it; chmod u+r {path}")
    with path.open("rb") as file:
        start = file.read(_START)
    if start.startswith(_LFS) or _WEB_PAGE.match(start):
        raise ValueError(f"{place}: {other_format(start, path.name)}")


def first_row(text: str, delimiter: str) -> list[str]:
    """Return the fields of the first row of a text; csv.Error if a quote is not closed."""
    if len(delimiter) > 1:  # not supported by the csv module
        return [
            field.removeprefix('"').removesuffix('"')
            for field in text.partition("\n")[0].rstrip("\r").split(delimiter)
        ]
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [])


def _explained(error: BaseException, place: str, columns: Sequence[str]) -> BaseException:
    """Return an error of DuckDB with line, column and problem, if known."""
    message = str(error)
    line = re.search(r"CSV Error on Line: (\d+)", message)
    where = f"{place}, line {line[1]}" if line else place
    if found := re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", message):
        at = columns[min(int(found[2]), len(columns) - 1)]
        return ValueError(
            f"{where}, column {at!r}: the row has {found[2]} fields, but the first row has {found[1]}; "
            "complete or remove the line"
        )
    if "Invalid unicode" in message:
        return _not_utf8(where)
    problem = next((problem for words, problem in _PROBLEMS.items() if words in message), None)
    return error if problem is None else ValueError(f"{where}: {problem}")


_TYPES = ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")  # and lists of them; other values are kept as text
_NO_VALUES = '"NULL"'
_OPTIONS = "hive_partitioning=false, maximum_object_size=67108864"


@dataclass(frozen=True, eq=False)
class JsonTable(FileTable):
    """Rows of JSON lines. Strings, including dates, stay text; a nested object is read as text.

    Numbers with fractions are text if they have integers that are not exact as float64.
    """

    types: Sequence[dict[str, str]]  # DuckDB types by column, for each file

    @classmethod
    def open(cls, files: Sequence[NamedPath], key: str) -> JsonTable:
        """Read all lines for the names and types of the columns."""
        types: list[dict[str, str]] = []
        schemas, rounded = [], set[str]()
        for name, path in files:
            with _connected(name, path, key) as (connection, source):
                found = connection.sql(f"SELECT * FROM read_json({source}, sample_size=-1)")
                if found.columns == ["json"]:  # DuckDB's name for values that are not objects
                    raise ValueError(f"{key}: {name}: has no JSON object; give one per line")
                kinds = [str(one) for one in found.types]
                plain = [one if one.removesuffix("[]") in _TYPES else "VARCHAR" for one in kinds]
                types.append(dict(zip(found.columns, plain, strict=True)))
                rounded |= _rounded(connection, source, types[-1])
                empty = connection.sql(f"{_query(source, types[-1], list(types[-1]))} LIMIT 0")
                nested = _nested(found, dict(zip(found.columns, kinds, strict=True)))
                schemas.append((name, pa.schema([
                    one.with_metadata(JSON_TEXT) if one.name in nested
                    else one.with_type(pa.null()) if kind == _NO_VALUES else one
                    for one, kind in zip(empty.to_arrow_table().schema, kinds, strict=True)
                ])))  # fmt: skip
        for at, (name, schema) in enumerate(schemas):  # a column has one type in all files
            as_text = {one for one in rounded if types[at].get(one) == "DOUBLE"}
            types[at] |= dict.fromkeys(as_text, "VARCHAR")
            given = [one.with_type(pa.string()) if one.name in as_text else one for one in schema]
            schemas[at] = name, pa.schema(given)
        return cls(tuple(files), *same_schema(schemas, key), key, tuple(types))

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have already been read."""
        for (name, path), types in zip(self.files, self.types, strict=True):
            with _connected(name, path, self.key) as (connection, source):
                query = connection.sql(_query(source, types, columns))
                with closing(query.to_arrow_reader(BATCH_ROWS)) as reader:
                    yield from pieces_of(name, reader)


def _rounded(connection: Any, source: str, types: dict[str, str]) -> set[str]:
    """Return the columns of numbers with fractions and with integers that float64 would change."""
    doubles = [name for name, kind in types.items() if kind == "DOUBLE"]
    if not doubles:
        return set()
    as_text = types | dict.fromkeys(doubles, "VARCHAR")
    tests = (
        f"bool_or(regexp_full_match({one}, '-?[0-9]+') AND format('{{:.0f}}', {one}::DOUBLE) <> {one})"
        for one in map(quoted, doubles)
    )
    changed = connection.sql(_query(source, as_text, doubles)).aggregate(", ".join(tests)).fetchall()[0]
    return {name for name, is_changed in zip(doubles, changed, strict=True) if is_changed}


def _nested(found: Any, kinds: dict[str, str]) -> set[str]:
    """Return the columns with objects or arrays that are read as text.

    DuckDB's type JSON is that of any mixed values.
    """
    nested = {name for name, kind in kinds.items() if kind.startswith(("STRUCT", "MAP")) or kind[-1:] == "]"}
    mixed = [name for name, kind in kinds.items() if kind == "JSON"]
    if mixed:
        tests = (f"bool_or(json_type({quoted(name)}) IN ('OBJECT', 'ARRAY'))" for name in mixed)
        answers = found.aggregate(", ".join(tests)).fetchall()[0]
        nested |= {name for name, is_nested in zip(mixed, answers, strict=True) if is_nested}
    return nested


@contextmanager
def _connected(name: str, path: Path, key: str) -> Iterator[tuple[Any, str]]:
    """Yield a connection, and the arguments of read_json. Errors name the line."""
    place = f"{key}: {name}"
    with reading(place, "give one object per line", "is not JSON lines"):
        first, last = _ends(name, path)
        form = "array" if first == b"[" else "newline_delimited"
        if first == b"[" and last != b"]":  # DuckDB accepts it
            raise ValueError(f"{place}: is cut off: its array is not closed; write it again")
        try:
            with connected(threads=2, memory_limit="1GB") as connection:
                yield connection, f"{literal(pattern_of(path))}, {_OPTIONS}, format='{form}'"
        except duckdb.Error:
            if form == "newline_delimited":
                _check_lines(name, path, place)
            raise


def _ends(name: str, path: Path) -> tuple[bytes, bytes]:
    """Return the first and the last nonblank byte of a file; for JSON lines, the last of the first MB."""
    first, last = b"", b""
    with pa.input_stream(str(path), compression=codec(name)) as stream:
        while (not first or first == b"[") and (chunk := stream.read(_CHUNK)):
            text = chunk.removeprefix(b"\xef\xbb\xbf").strip()
            first, last = first or text[:1], text[-1:] or last
    return first, last


def _check_lines(name: str, path: Path, place: str) -> None:
    """Raise ValueError for the first line that is not an object with distinct keys."""
    with pa.input_stream(str(path), compression=codec(name)) as stream:
        for number, line in enumerate(io.BufferedReader(stream), 1):
            where = f"{place}, line {number}"
            try:
                pairs = json.loads(line.removeprefix(b"\xef\xbb\xbf") or b"{}", object_pairs_hook=list)
                json.dumps(pairs, ensure_ascii=False).encode()
            except UnicodeDecodeError:
                raise ValueError(f"{where}: invalid UTF-8; save the file as UTF-8") from None
            except UnicodeEncodeError as error:
                half = f"\\u{ord(error.object[error.start]):04x}"
                raise ValueError(f"{where}: {half} is one half of a character; correct the line") from None
            except (ValueError, RecursionError):
                if line.strip():
                    raise ValueError(
                        f"{where}: is not one JSON object; correct the line, or give one object per line"
                    ) from None
                continue
            keys = [one[0] for one in pairs if isinstance(one, tuple)] if isinstance(pairs, list) else []
            if twice := next((one for at, one in enumerate(keys) if one in keys[:at]), None):
                raise ValueError(f"{where}: the key {twice!r} occurs twice; rename one")


def _query(source: str, types: dict[str, str], columns: Sequence[str]) -> str:
    chosen = ", ".join(map(quoted, columns))
    kinds = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    return f"SELECT {chosen} FROM read_json({source}, columns={{{kinds}}})"


_DAMAGED = "is not a Parquet file, or is damaged"
_OPEN = local()  # the last file of each thread: opening a file reads its footer


@dataclass(frozen=True, eq=False)
class ParquetTable(FileTable):
    """Rows of Parquet files. Threads may read row groups at the same time."""

    groups: Sequence[int]  # row groups of each file

    @classmethod
    def open(cls, files: Sequence[NamedPath], key: str) -> ParquetTable:
        """Read the footers of all files."""
        schemas, groups = [], []
        for name, path in files:
            with reading(f"{key}: {name}", "write it again", _DAMAGED), pq.ParquetFile(path) as file:
                schemas.append((name, file.schema_arrow))
                groups.append(file.metadata.num_row_groups)
        return cls(tuple(files), *same_schema(schemas, key), key, tuple(groups))

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield a reader per row group."""
        for (name, path), groups in zip(self.files, self.groups, strict=True):
            for group in range(groups):
                yield partial(self._read, name, str(path), group, list(columns))

    def _read(self, name: str, path: str, group: int, columns: list[str]) -> TableRows:
        with reading(f"{self.key}: {name}, row group {group}", "write it again", "is damaged"):
            file = _opened(path)
            table = file.read_row_group(group, columns=columns, use_threads=False)
        place = Place(name, group if file.metadata.num_row_groups > 1 else None)
        return TableRows(one_batch(table.select(columns)), place)


def one_batch(table: Any) -> Any:
    """Return a table as one record batch."""
    arrays = [_joined(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([
        pa.field(field.name, array.type) for field, array in zip(table.schema, arrays, strict=True)
    ]))  # fmt: skip


def _joined(column: Any) -> Any:
    joined = column.combine_chunks()
    return joined.combine_chunks() if hasattr(joined, "chunks") else joined


def _opened(path: str) -> Any:
    found = os.stat(path)
    identity = (path, found.st_ino, found.st_size, found.st_mtime_ns)  # a file may be overwritten
    if getattr(_OPEN, "identity", None) != identity:
        _OPEN.file, _OPEN.identity = pq.ParquetFile(path), identity
    return _OPEN.file


@dataclass(frozen=True, eq=False)
class ArrowTable(FileTable):
    """Rows of Arrow IPC files, mapped."""

    @classmethod
    def open(cls, files: Sequence[NamedPath], key: str) -> ArrowTable:
        """Read the schemas of all files."""
        schemas = [(name, _opened_arrow(name, path, key).schema) for name, path in files]
        return cls(tuple(files), *same_schema(schemas, key), key)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield a reader per record batch."""
        for name, path in self.files:
            reader, first = _opened_arrow(name, path, self.key), 0
            for number in range(reader.num_record_batches):
                with reading(f"{self.key}: {name}, batch {number}", "write it again", "is damaged"):
                    batch = reader.get_batch(number).select(list(columns))
                yield partial(TableRows, batch, Place(name, None, first))
                first += batch.num_rows


def _opened_arrow(name: str, path: Path, key: str) -> Any:
    with reading(f"{key}: {name}", "write it again", "is not an Arrow file, or is damaged"):
        return pa.ipc.open_file(pa.memory_map(str(path)))


FORMATS = {
    ".parquet": "parquet", ".pq": "parquet",
    ".csv": "csv", ".csv.gz": "csv", ".csv.zst": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".tsv.zst": "csv",
    ".txt": "csv", ".txt.gz": "csv", ".tab": "csv", ".tab.gz": "csv",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".jsonl.gz": "json", ".ndjson.gz": "json",
    ".json.gz": "json",
}  # fmt: skip


@dataclass(frozen=True)
class InputFile:
    """A file of the input."""

    name: str  # as in the spec, for errors
    path: Path


def find_files(patterns: Sequence[str], folder: Path, key: str) -> list[InputFile]:
    """Return the files of paths and globs, sorted by the bytes of their names.

    ValueError for a pattern without a file, a file given twice, and a file that cannot be read.
    """
    names = [name for pattern in patterns for name in _matches(pattern, folder, key)]
    names.sort(key=os.fsencode)
    for one, other in pairwise(names):
        if one == other:
            raise ValueError(f"{key}: {one} is named twice, so its rows would be read twice; name it once")
    files = [InputFile(name, folder / name) for name in names]
    known: dict[tuple[int, int], str] = {}
    for file in files:
        there = file.path.stat()
        if (other := known.setdefault((there.st_dev, there.st_ino), file.name)) != file.name:
            raise ValueError(
                f"{key}: {other} and {file.name} are the same file, so its rows would be read twice; name "
                "one of them"
            )
        refuse_unreadable(file.path, f"{key}: {file.name}")
    return files


def open_files(files: Sequence[InputFile], dialect: Dialect, key: str, format: str | None = None) -> Table:
    """Open files of one format as a table; without `format`, it is taken from the extensions."""
    formats = {format or _format(file.name, key) for file in files}
    if len(formats) > 1:
        raise ValueError(f"{key}: files of several formats, {', '.join(sorted(formats))}; convert to one")
    named, kind = [(file.name, file.path) for file in files], formats.pop()
    if kind == "csv":
        return CsvTable.open(named, dialect, key)
    opened: dict[str, type[ParquetTable | ArrowTable | JsonTable]]
    opened = {"parquet": ParquetTable, "arrow": ArrowTable, "json": JsonTable}
    return opened[kind].open(named, key)


def _matches(pattern: str, folder: Path, key: str) -> list[str]:
    # A path may be relative to a spec in a store.
    url = pattern if is_url(pattern) else with_urls(os.path.normpath(folder / pattern))
    if is_url(url):
        return list(map(str, matches(url)))
    if has_magic(pattern) and not (folder / pattern).exists():
        names = glob(pattern, root_dir=folder, recursive=True)
        for name in names:
            refuse_special(folder / name, f"{key}: {name}")
        found = [name for name in names if (folder / name).is_file()]
        if not found:
            raise ValueError(f"{key}: no file matches {pattern!r} in {folder}; {_near(pattern, folder)}")
        return found
    path = folder / pattern
    refuse_special(path, f"{key}: {pattern}")
    if path.is_dir():
        return _of_folder(pattern, folder, key)
    if not path.exists():
        raise ValueError(f"{key}: {pattern}: no such file in {folder}; {_near(pattern, folder)}")
    return [pattern]


def _of_folder(pattern: str, folder: Path, key: str) -> list[str]:
    """Return the tables in a folder and its subfolders; ValueError unless all have the same format.

    Other files, and hidden ones, are not tables. Links are followed, unless they lead to a folder above.
    """
    whole = folder / pattern
    found = sorted(path.relative_to(whole) for path in _below(whole, tuple(whole.resolve().parents)))
    names = [one for one in found if one.name.lower().endswith(tuple(FORMATS))]
    for one in names:
        refuse_special(folder / pattern / one, f"{key}: {Path(pattern, one)}")
    names = [one for one in names if (folder / pattern / one).is_file()]
    formats = {_format(one.name, key) for one in names}
    if len(formats) != 1:
        what = f"files of {', '.join(sorted(formats))}" if formats else "no file of a known format"
        raise ValueError(
            f'{key}: {pattern} is a folder with {what}; name its files, as "{pattern}/*.parquet"'
        )
    return [str(Path(pattern, one)) for one in names]


def _below(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, except hidden ones; `above` are its parents."""
    place = folder.resolve()
    for path in folder.iterdir() if place not in above else ():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _below(path, (*above, place))
        else:
            yield path


def _near(pattern: str, folder: Path) -> str:
    """Return a hint to files with similar names."""
    parent = (folder / pattern).parent
    names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    return nearest(Path(pattern).name, names) if parent.is_dir() else f"there is no folder {parent}"


def _format(name: str, key: str) -> str:
    lower = name.lower()
    for suffix, kind in FORMATS.items():
        if lower.endswith(suffix):
            return kind
    endings = ", ".join(FORMATS)
    raise TableFault(
        f"{key}: {name}: unknown format", f"give files that end in {endings}", 'give format = "csv"'
    )


@dataclass(frozen=True, eq=False)
class MemoryTable:
    """Rows of an Arrow table."""

    table: Any
    name: str

    @classmethod
    def of(cls, rows: Any, key: str) -> MemoryTable:
        """Wrap a table; memory is shared if its library allows it."""
        name = f"the table of {key}"
        if isinstance(rows, pa.Table):
            return cls(rows, name)
        if not hasattr(rows, "__arrow_c_stream__"):
            raise ValueError(
                f"{key}: rows is of type {type(rows).__name__}: give a pandas, polars or Arrow table"
            )
        try:
            return cls(pa.table(rows), name)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            column = re.search(r"column (\S+) with", str(error))
            where = f"{key}: the column {column[1]!r}" if column else f"{key}: a column"
            raise ValueError(f"{where} has values of several types; convert it to one type") from None

    @property
    def schema(self) -> Any:
        """Names and types of the columns."""
        return plain_schema(self.table.schema)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield slices of the table."""
        chosen = self.table.select(list(columns))
        starts = range(0, chosen.num_rows, BATCH_ROWS)
        return pieces_of(self.name, (one_batch(chosen.slice(first, BATCH_ROWS)) for first in starts))
