"""CSV files as a table: all columns are text, read by DuckDB in the order of the rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from khop.importing.file_schema import FileTable, NamedPath, same_schema
from khop.importing.packages import duckdb, pa
from khop.importing.rows import Piece, Place, Rows

BATCH_ROWS = 1 << 17
_PROBLEMS = {
    "Expected Number of Columns": "the row is cut or has too many fields",
    "Invalid unicode": "invalid UTF-8",
    "unterminated quote": "a quote is not closed",
    "Maximum line size": "the line is too long; a quote may not be closed",
}


@dataclass(frozen=True)
class Dialect:
    """Form of CSV files."""

    header: str = "yes"
    delimiter: str | None = None  # None: a tab for .tsv, else a comma

    def of(self, name: str) -> str:
        """Return the delimiter of a file."""
        return self.delimiter or ("\t" if ".tsv" in name.lower() else ",")


@dataclass(frozen=True, eq=False)
class CsvTable(FileTable):
    """Rows of CSV files. Types are never guessed: "007" stays text."""

    names: Sequence[Sequence[str]]  # columns of each file, in its order
    dialect: Dialect

    @classmethod
    def open(cls, files: Sequence[NamedPath], dialect: Dialect, key: str) -> CsvTable:
        """Read the first row of all files."""
        names = [_columns(name, path, dialect, key) for name, path in files]
        schemas = [
            (name, pa.schema([(column, pa.string()) for column in columns]))
            for (name, _), columns in zip(files, names, strict=True)
        ]
        return cls(tuple(files), same_schema(schemas, key), key, tuple(names), dialect)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already: a compressed file has only one reader."""
        for (name, path), there in zip(self.files, self.names, strict=True):
            first = 0
            for batch in self._batches(name, path, there, columns):
                yield partial(Rows, batch, Place(name, None, first))
                first += batch.num_rows

    def _batches(self, name: str, path: Path, there: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
        if not there:
            return
        query = (
            f"SELECT {', '.join(quoted(column) for column in columns)} FROM read_csv(?, auto_detect=false, "
            f"header={'true' if self.dialect.header == 'yes' else 'false'}, "
            f"delim={literal(self.dialect.of(name))}, "
            "quote='\"', escape='\"', nullstr='', strict_mode=true, null_padding=false, "
            "hive_partitioning=false, "
            f"compression={literal(_compression(name))}, columns={{{_types(there)}}})"
        )
        with duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as connection:
            try:
                reader = connection.sql(query, params=[_literal_path(path)]).to_arrow_reader(BATCH_ROWS)
                yield from (_as_text(batch) for batch in reader)
            except (duckdb.Error, pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{self.key}: {name}{_problem(str(error), there)}") from None


def _literal_path(path: Path) -> str:
    """Return a path for DuckDB, which takes *, ? and [ for patterns of several files."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(path))


def quoted(name: str) -> str:
    """Return a name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _as_text(batch: Any) -> Any:
    """Return the columns as plain strings: DuckDB may give views."""
    arrays = [column if column.type == pa.string() else column.cast(pa.string()) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _types(columns: Sequence[str]) -> str:
    return ", ".join(f"{literal(column)}: 'VARCHAR'" for column in columns)


def _compression(name: str) -> str:
    suffix = name.lower().rpartition(".")[2]
    return {"gz": "gzip", "zst": "zstd"}.get(suffix, "none")


def _columns(name: str, path: Path, dialect: Dialect, key: str) -> list[str]:
    """Return the names in the first row, or numbers if it holds data."""
    kind = {"gzip": "gzip", "zstd": "zstd", "none": None}[_compression(name)]
    try:
        with pa.input_stream(str(path), compression=kind) as stream:
            start = stream.read(1 << 20)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{key}: {name}: cannot be read ({error}); write it again") from None
    try:
        text = start.decode("utf-8-sig", errors="strict" if len(start) < 1 << 20 else "ignore")
    except UnicodeDecodeError as error:
        line = start[: error.start].count(b"\n") + 1
        raise ValueError(f"{key}: {name}, line {line}: invalid UTF-8; save the file as UTF-8") from None
    first = next(csv.reader(text.splitlines(keepends=True), delimiter=dialect.of(name)), [])
    columns = first if dialect.header == "yes" else [str(number) for number in range(len(first))]
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"{key}: {name}: column {twice[0]!r} is there twice; rename one in the first row")
    if not columns and dialect.header == "yes":
        raise ValueError(f"{key}: {name}: is empty; its first row must name the columns")
    return columns


def _problem(message: str, columns: Sequence[str]) -> str:
    """Return DuckDB's message as the rest of a sentence: line, column and problem."""
    line = re.search(r"CSV Error on Line: (\d+)", message)
    where = f", line {line[1]}" if line else ""
    found = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", message)
    if found:
        at = columns[min(int(found[2]), len(columns) - 1)]
        return (
            f"{where}, column {at!r}: the row has {found[2]} fields, and the first row has {found[1]}; "
            "complete or remove the line"
        )
    for words, problem in _PROBLEMS.items():
        if words in message:
            return f"{where}: {problem}; correct the line"
    return f"{where}: cannot be read ({message.splitlines()[0]}); correct the file"
