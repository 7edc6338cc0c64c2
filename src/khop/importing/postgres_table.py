"""A table of a Postgres database, read through ADBC in the order of a unique column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from khop.importing.adbc import driver
from khop.importing.csv_file import quoted
from khop.importing.ordered_rows import batches_as_pieces, check_order, check_table
from khop.importing.packages import pa
from khop.importing.postgres_snapshot import PostgresSnapshot, answer
from khop.importing.rows import Piece

# Types that Arrow has. Columns of all others are read as text: numeric keeps its digits, and uuid its form.
_PLAIN = {
    "bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "bytea", "date", "timestamp",
    "timestamptz",
}  # fmt: skip
_TABLES = """
SELECT n.nspname, c.relname, pg_table_is_visible(c.oid), c.oid::int8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""
_COLUMNS = """
SELECT a.attname, coalesce(base.typname, t.typname)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type base ON base.oid = t.typbasetype
WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True, eq=False)
class PostgresTable:
    """Rows of a table, in the snapshot that all tables of the database share."""

    snapshot: PostgresSnapshot
    name: str
    key: str
    place: str  # schema and table, quoted
    order_by: str
    expressions: Mapping[str, str]  # by column
    schema: Any
    num_rows: int
    num_bytes: int  # on the server; 0 for a view

    @classmethod
    def open(cls, snapshot: PostgresSnapshot, table: str, order_by: str, key: str) -> PostgresTable:
        """Check the table and its order; `table` may have a schema, as sales.orders."""
        name = f"{snapshot.name}, table {table}"
        try:
            with snapshot.reading(key) as connection:
                place, oid = _place(connection, table, snapshot.name, key)
                expressions = {
                    column: quoted(column) + _cast(type_)
                    for column, type_ in answer(connection, _COLUMNS.format(oid=oid))
                }

                def counts(column: str) -> tuple[int, int]:
                    query = f"SELECT count(*), count(DISTINCT {column}) FROM {place}"
                    rows, distinct = answer(connection, query)[0]
                    return rows, distinct

                rows = check_order(order_by, list(expressions), counts, name, key)
                size = answer(connection, f"SELECT pg_table_size({oid}::oid)")[0][0]
                schema = _schema(connection, f"SELECT {_listed(expressions)} FROM {place} LIMIT 0")
        except driver("postgresql").Error as error:
            raise ValueError(
                f"{key}: {name}: Postgres cannot read it ({snapshot.shown(error)}); grant SELECT, or give "
                "another table"
            ) from None
        return cls(snapshot, name, key, place, order_by, expressions, schema, rows, int(size))

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already: they come in the order of the column."""
        chosen = _listed({column: self.expressions[column] for column in columns})
        query = f"SELECT {chosen} FROM {self.place} ORDER BY {quoted(self.order_by)}"
        try:
            with self.snapshot.reading(self.key) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(query)
                yield from batches_as_pieces(cursor.fetch_record_batch(), self.name)
        except (driver("postgresql").Error, OSError) as error:
            raise ValueError(
                f"{self.key}: {self.name}: reading failed ({self.snapshot.shown(error)}); import again"
            ) from None


def _place(connection: Any, table: str, database: str, key: str) -> tuple[str, int]:
    """Return the quoted name of a table, which may be given with its schema, and its number."""
    there: dict[str, tuple[str, int]] = {}
    for schema, relation, is_visible, oid in answer(connection, _TABLES):
        at = f"{quoted(schema)}.{quoted(relation)}", int(oid)
        there[f"{schema}.{relation}"] = at
        if is_visible:
            there[relation] = at
    check_table(table, list(there), database, key)
    return there[table]


def _schema(connection: Any, query: str) -> Any:
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return pa.schema([(one.name, one.type) for one in cursor.fetch_record_batch().schema])


def _listed(expressions: Mapping[str, str]) -> str:
    return ", ".join(f"{value} AS {quoted(column)}" for column, value in expressions.items())


def _cast(type_: str) -> str:
    """Return the cast that makes a column text, or none."""
    is_list = type_.startswith("_")
    return "" if type_.removeprefix("_") in _PLAIN else "::text[]" if is_list else "::text"
