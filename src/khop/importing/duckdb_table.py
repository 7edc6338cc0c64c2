"""A table of a DuckDB file, read in one snapshot in the order of a unique column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.importing.csv_file import BATCH_ROWS, quoted
from khop.importing.file_schema import total_bytes
from khop.importing.ordered_rows import batches_as_pieces, check_order, check_table
from khop.importing.packages import duckdb, reading
from khop.importing.rows import Piece

_BROKEN = "is damaged, or is a view that fails"


@dataclass(frozen=True, eq=False)
class DuckDbTable:
    """Rows of a table. The connection is read-only, and all readers see one transaction."""

    path: Path
    table: str
    order_by: str
    schema: Any
    connection: Any
    num_rows: int

    @classmethod
    def open(cls, path: Path, table: str, order_by: str, key: str) -> DuckDbTable:
        """Open the file read-only, and check that the order is unique."""
        name = f"{path.name}, table {table}"
        remedy = "close programs that write to it, or give the path of a DuckDB or SQLite file"
        with reading(f"{key}: {path.name}", remedy, "is not a DuckDB file, or is damaged"):
            connection = duckdb.connect(str(path), read_only=True, config={"enable_external_access": "false"})
            connection.execute("BEGIN TRANSACTION")
        found = connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
        check_table(table, [one for (one,) in found], path.name, key)

        def counts(column: str) -> tuple[int, int]:
            query = f"SELECT count(*), count(DISTINCT {column}) FROM {quoted(table)}"
            found: Any = connection.execute(query).fetchone()
            return found[0], found[1]

        with reading(f"{key}: {name}", "a view reads this file alone: write other tables into it", _BROKEN):
            schema = connection.sql(f"SELECT * FROM {quoted(table)} LIMIT 0").to_arrow_table().schema
            rows = check_order(order_by, schema.names, counts, name, key)
        return cls(path, table, order_by, schema, connection, rows)

    @property
    def name(self) -> str:
        """File and table."""
        return f"{self.path.name}, table {self.table}"

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return total_bytes([(self.path.name, self.path)])

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already: they come in the order of the column."""
        query = (
            f"SELECT {', '.join(quoted(column) for column in columns)} FROM {quoted(self.table)} "
            f"ORDER BY {quoted(self.order_by)}"
        )
        cursor = self.connection.cursor()
        yield from batches_as_pieces(cursor.sql(query).to_arrow_reader(BATCH_ROWS), self.name)
