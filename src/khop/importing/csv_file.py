"""CSV files as a table: all columns are text, read by DuckDB in the order of the rows."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from khop.importing.arrow_values import numpy_of
from khop.importing.file_schema import FileTable, NamedPath, same_schema
from khop.importing.packages import PACKAGE_ERRORS, duckdb, pa, pc, reading
from khop.importing.rows import Piece, Place, Rows

BATCH_ROWS = 1 << 17
_CHUNK = 1 << 20  # bytes
_MIXED = re.compile("reached an invalid state|unterminated quote")  # also of lines with different ends
_INVALID = 'invalid UTF-8; save the file as UTF-8, or give its encoding, as encoding = "latin-1"'
_PROBLEMS = {
    "Invalid unicode": _INVALID,
    "unterminated quote": "a quote is not closed; correct the line",
    "Maximum line size": "the line is longer than 2 MB, or a quote is not closed; correct the line",
}
_SIGNATURES = {
    b"\x1f\x8b": "is compressed; rename it to end in .csv.gz",
    b"\x28\xb5\x2f\xfd": "is compressed; rename it to end in .csv.zst",
    b"PAR1": "is a Parquet file; rename it to end in .parquet",
    b"ARROW1": "is an Arrow file; rename it to end in .arrow",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; unpack it, or save the sheet as CSV",
    b"\xff\xfe": 'is UTF-16; give encoding = "utf-16"',
    b"\xfe\xff": 'is UTF-16; give encoding = "utf-16"',
}


@dataclass(frozen=True)
class Dialect:
    """Form of CSV files."""

    header: str = "yes"
    delimiter: str | None = None  # None: a tab for .tsv, else a comma
    encoding: str = "utf-8"

    def of(self, name: str) -> str:
        """Return the delimiter of a file."""
        return self.delimiter or ("\t" if ".tsv" in name.lower() else ",")

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
        """Yield rows that have been read already: a compressed file has only one reader."""
        for (name, path), there in zip(self.files, self.names, strict=True):
            first = 0
            for batch in self._batches(name, path, there, columns) if there else ():
                rows = Rows(batch, Place(name, None, first))
                _refuse_nul(rows, self.key)
                yield partial(Rows, rows.batch, rows.place)
                first += batch.num_rows

    def _batches(self, name: str, path: Path, there: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows. If line ends seem to be mixed, the rest is read with translated ones."""
        place, done = f"{self.key}: {name}", 0
        for is_mixed in (False, True):
            is_plain = self.dialect.is_utf8 and not codec(name) and not is_mixed
            text = _decoded(name, path, self.dialect, place, is_mixed)
            known = done
            try:
                with file_pattern(path) if is_plain else _piped(text) as source:
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
        """Yield the rows of a file as DuckDB reads them. Columns have numbers: SQL ignores case in names."""
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
            duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as connection,
            closing(connection.sql(query, params=[source]).to_arrow_reader(BATCH_ROWS)) as reader,
        ):
            yield from (_as_text(batch, columns) for batch in reader)


def quoted(name: str) -> str:
    """Return a name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _as_text(batch: Any, names: Sequence[str]) -> Any:
    """Return the columns as plain strings: DuckDB may give views."""
    arrays = [column if column.type == pa.string() else column.cast(pa.string()) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _refuse_nul(rows: Rows, key: str) -> None:
    """Raise ValueError for a NUL, which no text has: the file is damaged, or has another encoding."""
    for name, array in zip(rows.batch.schema.names, rows.batch.columns, strict=True):
        data = array.buffers()[2]
        if data is None or b"\0" not in data.to_pybytes():
            continue
        found = numpy_of(pc.fill_null(pc.match_substring(array, "\0"), False))
        if found.any():  # the buffer may be longer than the text
            raise ValueError(
                f"{rows.row(int(np.argmax(found)))}: {key}: the column {name!r} has a NUL byte; correct the "
                "row, or give the encoding of the file"
            )


@contextmanager
def file_pattern(path: Path) -> Iterator[str]:
    """Yield a path for DuckDB, which takes *, ? and [ for patterns of several files."""
    yield re.sub(r"[*?\[]", r"[\g<0>]", str(path))


@contextmanager
def _piped(chunks: Iterator[bytes]) -> Iterator[str]:
    """Write chunks into a pipe on a thread, and yield its path. Raises the error of the chunks at the end."""
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
        if failed:  # the reader may have failed because of it
            raise failed[0] from None


def _decoded(name: str, path: Path, dialect: Dialect, place: str, translates: bool) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8; with `translates`, all lines end in LF."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(dialect.encoding)(), translates)
    line, chunk = 1, b"-"
    with reading(place, "write it again"), pa.input_stream(str(path), compression=codec(name)) as stream:
        while chunk:
            chunk = stream.read(_CHUNK)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _undecodable(error, dialect, place, line) from None
            line += text.count("\n")
            yield text.encode()


def _undecodable(error: UnicodeDecodeError, dialect: Dialect, place: str, line: int) -> ValueError:
    """Return the error for text that begins in a line."""
    line += error.object[: error.start].count(b"\n")
    remedy = _INVALID if dialect.is_utf8 else f"invalid {dialect.encoding}; give the encoding of the file"
    return ValueError(f"{place}, line {line}: {remedy}")


def codec(name: str) -> str | None:
    """Return the compression of a file, by its name."""
    return {"gz": "gzip", "zst": "zstd"}.get(name.lower().rpartition(".")[2])


def _columns(name: str, path: Path, dialect: Dialect, place: str) -> list[str]:
    """Return the names in the first row, or numbers if it holds data; unnamed columns have numbers."""
    with reading(place, "write it again"), pa.input_stream(str(path), compression=codec(name)) as stream:
        start = stream.read(_CHUNK)
    problem = next((text for of_format, text in _SIGNATURES.items() if start.startswith(of_format)), None)
    if problem is not None and dialect.is_utf8:
        raise ValueError(f"{place}: {problem}")
    try:
        text = codecs.getincrementaldecoder(dialect.encoding)().decode(start, final=len(start) < _CHUNK)
        rows = csv.reader(
            io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=dialect.of(name), strict=True
        )
        first = next(rows, [])
    except UnicodeDecodeError as error:
        raise _undecodable(error, dialect, place, 1) from None
    except csv.Error:
        raise ValueError(
            f"{place}, line 1: no row of CSV: a quote is not closed, or a field is longer than "
            f"{csv.field_size_limit():,} characters; correct the line"
        ) from None
    if any("\0" in column for column in first):
        raise ValueError(f'{place}, line 1: has a NUL byte; give encoding = "utf-16", or correct the line')
    if dialect.header == "no":
        return [str(number) for number in range(len(first))]
    if not any(first):
        reason = "line 1 is empty" if text.strip() else "is empty"
        raise ValueError(f"{place}: {reason}; the first row must name the columns")
    columns = [column or str(number) for number, column in enumerate(first)]
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(
            f"{place}, line 1: the column {twice[0]!r} is there twice; rename one in the first row"
        )
    return columns


def _explained(error: BaseException, place: str, columns: Sequence[str]) -> BaseException:
    """Return an error of DuckDB as one with line, column and problem, if it tells them."""
    message = str(error)
    line = re.search(r"CSV Error on Line: (\d+)", message)
    where = f"{place}, line {line[1]}" if line else place
    if found := re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", message):
        at = columns[min(int(found[2]), len(columns) - 1)]
        return ValueError(
            f"{where}, column {at!r}: the row has {found[2]} fields, and the first row has {found[1]}; "
            "complete or remove the line"
        )
    problem = next((problem for words, problem in _PROBLEMS.items() if words in message), None)
    return error if problem is None else ValueError(f"{where}: {problem}")
