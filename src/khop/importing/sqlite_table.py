"""A table of an SQLite file, read through ADBC in the order of a unique column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from khop.importing.adbc import driver
from khop.importing.csv_file import BATCH_ROWS, literal, quoted
from khop.importing.file_schema import total_bytes
from khop.importing.ordered_rows import batches_as_pieces, check_order, check_table
from khop.importing.packages import explained, pa
from khop.importing.rows import Piece

HEADER = b"SQLite format 3\0"
_KINDS = ("integer", "real", "text", "blob")
# A value of each kind: the driver takes the type of a column from its first rows, which may all be null.
_FIRST = {"integer": "0", "real": "0.0", "text": "''", "blob": "zeroblob(0)"}
_TYPES = {"integer": "int64", "real": "float64", "text": "string", "blob": "binary"}


@dataclass(frozen=True, eq=False)
class SqliteTable:
    """Rows of a table. All tables of a file share one connection, which is one read-only transaction."""

    path: Path
    table: str
    order_by: str
    connection: Any
    key: str
    kinds: Mapping[str, Mapping[str, int]]  # by column: values of each kind that occurs
    num_rows: int

    @classmethod
    def open(cls, path: Path, connection: Any, table: str, order_by: str, key: str) -> SqliteTable:
        """Check the table, its order, and the kinds of all values: SQLite fixes none."""
        name = f"{path.name}, table {table}"
        if path.stat().st_size < _recorded_bytes(path):
            raise ValueError(f"{key}: {path.name}: is cut off; restore the file")
        try:
            found = _answer(connection, "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            check_table(table, [one for (one,) in found], path.name, key)
            columns = [row[1] for row in _answer(connection, f"PRAGMA table_info({literal(table)})")]

            def counts(column: str) -> tuple[int, int]:
                query = f"SELECT count(*), count(DISTINCT {column}) FROM {quoted(table)}"
                rows, distinct = _answer(connection, query)[0]
                return rows, distinct

            rows = check_order(order_by, columns, counts, name, key)
            kinds = _kinds_of(connection, table, columns)
        except driver("sqlite").Error as error:
            remedy = "close programs that write to it, or restore the file"
            raise explained(error, f"{key}: {name}", remedy, "is damaged, or is a view that fails") from None
        return cls(path, table, order_by, connection, key, kinds, rows)

    @property
    def name(self) -> str:
        """File and table."""
        return f"{self.path.name}, table {self.table}"

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return total_bytes([(self.path.name, self.path)])

    @property
    def schema(self) -> Any:
        """Columns with the type of all their values; text where they differ, until the column is read."""
        return pa.schema([(column, _TYPES[_kind(kinds)]) for column, kinds in self.kinds.items()])

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already: they come in the order of the column."""
        for column in columns:
            self._check_kinds(column)
        kinds = [_kind(self.kinds[column]) for column in columns]
        chosen = [
            f"CAST({quoted(column)} AS REAL)" if kind == "real" else quoted(column)
            for column, kind in zip(columns, kinds, strict=True)
        ]
        first = [f"{_FIRST[kind]} AS {quoted(column)}" for column, kind in zip(columns, kinds, strict=True)]
        query = (
            f"SELECT {', '.join(first)} UNION ALL SELECT * FROM (SELECT {', '.join(chosen)} FROM "
            f"{quoted(self.table)} ORDER BY {quoted(self.order_by)})"
        )
        with closing(self.connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            try:
                cursor.execute(query)
                yield from batches_as_pieces(_without_first(cursor.fetch_record_batch()), self.name)
            except (driver("sqlite").Error, OSError) as error:
                place, reason = f"{self.key}: {self.name}", "has a value that cannot be read"
                raise explained(error, place, "correct the rows", reason) from None

    def _check_kinds(self, column: str) -> None:
        kinds = self.kinds[column]
        if set(kinds) <= {"integer", "real"} or len(kinds) == 1:
            return
        rare = min(kinds, key=lambda kind: kinds[kind])
        query = (
            f"SELECT {quoted(self.order_by)} FROM {quoted(self.table)} WHERE typeof({quoted(column)}) = "
            f"{literal(rare)} ORDER BY {quoted(self.order_by)} LIMIT 1"
        )
        first = _answer(self.connection, query)[0][0]
        counts = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.items())
        raise ValueError(
            f"{self.key}: column {column!r} of {self.name} has values of several types ({counts}); the first "
            f"of {rare} is in the row with {self.order_by} = {first!r}; correct it, or give a view with "
            f"CAST({column} AS TEXT)"
        )


def connect(path: Path) -> Any:
    """Return a read-only connection; its transaction begins with the first query and ends with it."""
    return driver("sqlite").connect(f"file:{quote(str(path))}?mode=ro")


def _recorded_bytes(path: Path) -> int:
    """Return the size of a file as its header has it; 0 if an early version wrote the file."""
    with path.open("rb") as file:
        header = file.read(100)
    page, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
    return (page if page > 1 else 1 << 16) * pages if header[24:28] == header[92:96] else 0


def _kind(kinds: Mapping[str, int]) -> str:
    """Return the kind of a column: real if integers and reals occur, text if there is no value."""
    if not kinds:
        return "text"
    if set(kinds) <= {"integer", "real"}:
        return "real" if "real" in kinds else "integer"
    return next(iter(kinds)) if len(kinds) == 1 else "text"


def _kinds_of(connection: Any, table: str, columns: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the kinds of the values of all columns, in one pass."""
    sums = ", ".join(
        f"total(typeof({quoted(column)}) = {literal(kind)})" for column in columns for kind in _KINDS
    )
    found = [int(number) for number in _answer(connection, f"SELECT {sums} FROM {quoted(table)}")[0]]
    width = len(_KINDS)
    return {
        column: {
            kind: count
            for kind, count in zip(_KINDS, found[width * at : width * (at + 1)], strict=True)
            if count
        }
        for at, column in enumerate(columns)
    }


def _answer(connection: Any, query: str) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        rows: list[Any] = cursor.fetchall()
        return rows


def _without_first(batches: Any) -> Iterator[Any]:
    """Yield all rows but the first, which is there for its types."""
    for number, batch in enumerate(batches):
        rest = batch if number else batch.slice(1)
        if rest.num_rows:
            yield rest
