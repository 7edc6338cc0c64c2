"""A table of a DuckDB file, read in one snapshot in the order of a unique column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from khop.importing.csv_file import BATCH_ROWS, quoted
from khop.importing.file_schema import identity_of, total_bytes
from khop.importing.packages import duckdb
from khop.importing.read_spec import nearest
from khop.importing.rows import Piece, Place, Rows

ENVIRONMENT = "env:"


@dataclass(frozen=True, eq=False)
class DatabaseTable:
    """Rows of a table. The connection is read-only, and all readers see one transaction."""

    path: Path
    table: str
    order_by: str
    schema: Any
    connection: Any
    key: str

    @classmethod
    def open(cls, path: Path, table: str, order_by: str, key: str) -> DatabaseTable:
        """Open the file read-only, and check that the order is unique."""
        if not path.is_file():
            raise ValueError(
                f"{key}: {path.name}: no such file in {path.parent}; give the path of a DuckDB file"
            )
        try:
            connection = duckdb.connect(str(path), read_only=True, config={"enable_external_access": "false"})
            connection.execute("BEGIN TRANSACTION")
        except duckdb.Error as error:
            line = str(error).splitlines()[0]
            raise ValueError(
                f"{key}: {path.name}: DuckDB cannot open it ({line}); close other writers"
            ) from None
        tables = [
            name
            for (name,) in connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
        ]
        if table not in tables:
            raise ValueError(f"{key}: {path.name}: no table {table!r}; {nearest(table, tables)}")
        try:
            schema = connection.sql(f"SELECT * FROM {quoted(table)} LIMIT 0").to_arrow_table().schema
        except duckdb.Error as error:
            line = str(error).splitlines()[0]
            raise ValueError(
                f"{key}: {path.name}, table {table}: DuckDB cannot read it ({line}); a view reads this file "
                "alone, write other tables into it"
            ) from None
        opened = cls(path, table, order_by, schema, connection, key)
        opened._check_order()
        return opened

    @property
    def name(self) -> str:
        """File and table."""
        return f"{self.path.name}, table {self.table}"

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return total_bytes([(self.path.name, self.path)])

    def identity(self) -> str:
        """Return name, size and time of the file, and the table."""
        return f"{identity_of([(self.path.name, self.path)])}:{self.table}:{self.order_by}"

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already: they come in the order of the column."""
        query = (
            f"SELECT {', '.join(quoted(column) for column in columns)} FROM {quoted(self.table)} "
            f"ORDER BY {quoted(self.order_by)}"
        )
        first, cursor = 0, self.connection.cursor()
        for batch in cursor.sql(query).to_arrow_reader(BATCH_ROWS):
            yield partial(Rows, batch, Place(self.name, None, first))
            first += batch.num_rows

    def _check_order(self) -> None:
        if self.order_by not in self.schema.names:
            hint = nearest(self.order_by, self.schema.names)
            raise ValueError(f"{self.key}: order_by: no column {self.order_by!r} in {self.name}; {hint}")
        column = quoted(self.order_by)
        rows, distinct = self.connection.execute(
            f"SELECT count(*), count(DISTINCT {column}) FROM {quoted(self.table)}"
        ).fetchone()
        if rows != distinct:
            raise ValueError(
                f"{self.key}: order_by {self.order_by!r} of {self.name} has {distinct:,} values in {rows:,} "
                "rows, so rows have no fixed order; give a unique column"
            )


def database_path(given: str, folder: Path, environment: Mapping[str, str], key: str) -> Path:
    """Return the path of a database: as given, relative to the spec, or from the environment."""
    if not given.startswith(ENVIRONMENT):
        return folder / given
    name = given.removeprefix(ENVIRONMENT)
    if name not in environment:
        raise ValueError(f"{key}: the environment has no variable {name}; set it to the path of the database")
    if "://" in environment[name] or "=" in environment[name]:
        raise ValueError(
            f"{key}: {given} holds a connection, and only DuckDB files are read; export the table to Parquet"
        )
    return folder / environment[name]
