"""Tables of databases: DuckDB and SQLite files and Postgres servers, read as record batches.

All tables of a database are read in one read-only snapshot, each in the order of a unique column. ADBC
drivers read SQLite and Postgres.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from khop.data.tables.files import BATCH_ROWS, literal, quoted, refuse_unreadable
from khop.data.tables.packages import connected, driver, duckdb, explained, pa
from khop.data.tables.read_spec import nearest
from khop.data.tables.rows import Piece, pieces_of

Kind = Literal["duckdb", "sqlite", "postgresql"]
ENVIRONMENT = "env:"
_HEADER = b"SQLite format 3\0"
_ADDRESS = re.compile(r"postgres(ql)?://|\s*(host|hostaddr|port|dbname|user|service)\s*=", re.IGNORECASE)
_TIMEOUT_S = 10
_BEGIN = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
_STATE = "SELECT current_database() || ' ' || txid_current_snapshot()::text"
# Texts for errors of Postgres, whose messages may contain parts of an address, including the password.
_REASONS = {
    "authentication failed|no password supplied": "the user or the password is refused",
    "no pg_hba.conf entry": "the server does not accept this user from this host (pg_hba.conf)",
    "Connection refused|No such file or directory": "no server answers there",
    "could not translate host name": "the host is not known",
    "permission denied": "the user has no permission to read it",
    "canceling statement": "the server ended the query",
    "terminat|closed the connection|connection (?:reset|lost)": "the connection was lost",
    "recovery|standby": "it is a standby",
    "timeout|timed out": f"the server does not answer within {_TIMEOUT_S} s",
    "database .* does not exist": "it has no database of this name",
    "role .* does not exist": "it has no user of this name",
    "SSL|certificate": "the encrypted connection fails",
    "too many": "it has no free connection",
}
_REMEDIES: Mapping[Kind, str] = {
    "duckdb": "a view may only read this file: write other tables into it",
    "sqlite": "close programs that write to it, or restore the file",
    "postgresql": "grant SELECT on it to the user, or import again",
}
_TABLES: Mapping[Kind, str] = {
    "duckdb": "SELECT table_name, NULL FROM information_schema.tables",
    "sqlite": "SELECT name, NULL FROM sqlite_master WHERE type IN ('table', 'view')",
    "postgresql": """
        SELECT coalesce(prefix, '') || c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL (VALUES (n.nspname || '.'), (NULL)) p(prefix)
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (prefix IS NOT NULL OR pg_table_is_visible(c.oid))
        AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')""",
}
_COLUMNS: Mapping[Kind, str] = {
    "duckdb": "SELECT column_name, '' FROM (DESCRIBE {place})",
    "sqlite": "SELECT name, '' FROM pragma_table_xinfo({text}) WHERE hidden <> 1",  # also generated ones
    "postgresql": """
        SELECT a.attname, coalesce(base.typname, t.typname) FROM pg_attribute a
        JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type base ON base.oid = t.typbasetype
        WHERE a.attrelid = {text}::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum""",
}
# Types of Postgres that Arrow has. Others are read as text, which keeps the digits of numeric.
_PLAIN = {
    "", "bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "bytea", "date", "timestamp",
    "timestamptz",
}  # fmt: skip
# A value of each type of SQLite: the driver infers the type of a column from its first rows, which may be
# null.
_FIRST = {"integer": "0", "real": "0.0", "text": "''", "blob": "zeroblob(0)"}


@dataclass(frozen=True, eq=False)
class DatabaseState:
    """A snapshot of a database, and the connection that reads it: of a server, one table at a time."""

    name: str  # as in the spec
    kind: Kind
    connection: Any = field(repr=False)
    state: str = ""  # of a server: changes with every write

    def rows(self, query: str) -> list[Any]:
        """Return the rows of a query."""
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(query)
            found: list[Any] = cursor.fetchall()
            return found

    def batches(self, query: str) -> Iterator[Any]:
        """Yield the record batches of a query."""
        with closing(self.connection.cursor()) as cursor:
            if self.kind == "duckdb":
                yield from cursor.sql(query).to_arrow_reader(BATCH_ROWS)
                return
            if self.kind == "sqlite":
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            cursor.execute(query)
            yield from cursor.fetch_record_batch()

    @contextmanager
    def sentences(self, place: str, reason: str) -> Iterator[None]:
        """Turn errors of the driver into texts without passwords."""
        error_type = duckdb.Error if self.kind == "duckdb" else driver(self.kind).Error
        reasons = _REASONS if self.kind == "postgresql" else None
        try:
            yield
        except duckdb.OutOfMemoryException:
            raise MemoryError(place) from None
        except (error_type, OSError) as error:
            raise explained(error, place, _REMEDIES[self.kind], reason, reasons) from None


@dataclass(frozen=True, eq=False)
class DatabaseTable:
    """Rows of a table or a view."""

    snapshot: DatabaseState
    name: str  # with its database
    key: str
    place: str  # in SQL
    order_by: str
    columns: Mapping[str, str]  # SQL expressions
    types: Mapping[str, Mapping[str, int]]  # for SQLite: the number of rows of each type by column
    schema: Any
    num_rows: int

    @classmethod
    def open(cls, snapshot: DatabaseState, table: str, order_by: str, key: str) -> DatabaseTable:
        """Check the table, and that the values of `order_by` are unique."""
        kind, name = snapshot.kind, f"{snapshot.name}, table {table}"
        with snapshot.sentences(f"{key}: {name}", "is damaged, or is a view that fails"):
            there: dict[str, str | None] = dict(snapshot.rows(_TABLES[kind]))
            if table not in there:
                raise ValueError(f"{key}: {snapshot.name}: no table {table!r}; {nearest(table, list(there))}")
            place = there[table] or quoted(table)
            text = literal(place if kind == "postgresql" else table)
            found = snapshot.rows(_COLUMNS[kind].format(place=place, text=text))
            columns = {column: quoted(column) + _cast(type_) for column, type_ in found}
            if order_by not in columns:
                hint = nearest(order_by, list(columns))
                raise ValueError(f"{key}: order_by: no column {order_by!r} in {name}; {hint}")
            counts = f"SELECT count(*), count(DISTINCT {quoted(order_by)}) FROM {place}"
            rows, distinct = snapshot.rows(counts)[0]
            if rows != distinct:
                raise ValueError(
                    f"{key}: order_by {order_by!r} of {name} has {distinct:,} values in {rows:,} rows, so "
                    "rows have no fixed order; give a unique column"
                )
            types = _sqlite_types(snapshot, place, list(columns)) if kind == "sqlite" else {}
            columns |= {c: f"CAST({columns[c]} AS REAL)" for c, of in types.items() if _type(of) == "real"}
            opened = cls(snapshot, name, key, place, order_by, columns, types, None, int(rows))
            return replace(opened, schema=_schema(snapshot, opened.query(list(columns), "WHERE false")))

    def query(self, columns: Sequence[str], where: str = "") -> str:
        """Return the query of some columns. For SQLite, a first row sets the types."""
        chosen = ", ".join(f"{self.columns[column]} AS {quoted(column)}" for column in columns)
        query = f"SELECT {chosen} FROM {self.place} {where} ORDER BY {quoted(self.order_by)}"
        if self.snapshot.kind != "sqlite":
            return query
        first = (f"{_FIRST[_type(self.types[column])]} AS {quoted(column)}" for column in columns)
        return f"SELECT {', '.join(first)} UNION ALL SELECT * FROM ({query})"

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have already been read, in the order of the column."""
        for column in columns:
            self._refuse_mixed(column)
        with self.snapshot.sentences(f"{self.key}: {self.name}", "has a value that cannot be read"):
            batches = self.snapshot.batches(self.query(columns))
            if self.snapshot.kind == "sqlite":  # without the first row
                batches = (batch.slice(0 if at else 1) for at, batch in enumerate(batches))
            yield from pieces_of(self.name, (batch for batch in batches if batch.num_rows))

    def _refuse_mixed(self, column: str) -> None:
        """Raise ValueError for a column of SQLite with text and numbers, or with inexact numbers."""
        types, name, order = self.types.get(column, {}), quoted(column), quoted(self.order_by)
        if len(types) < 2:
            return
        is_real = _type(types) == "real"  # an integer beyond 2**53 would change
        rare = "integer" if is_real else min(types, key=lambda type_: types[type_])
        beyond = f" AND {name} NOT BETWEEN {-(2**53)} AND {2**53}" if is_real else ""
        found = self.snapshot.rows(
            f"SELECT {order}, {name} FROM {self.place} WHERE typeof({name}) = {literal(rare)}{beyond} "
            "ORDER BY 1 LIMIT 1"
        )
        if not found:
            return
        row, value = found[0]
        place = f"in the row with {self.order_by} = {row!r}"
        counts = ", ".join(f"{count:,} of {type_}" for type_, count in types.items())
        problem = (
            f"is {value} {place}: not exact as a real, which other rows have"
            if is_real
            else f"has values of several types ({counts}); the first of {rare} is {place}"
        )
        raise ValueError(
            f"{self.key}: column {column!r} of {self.name} {problem}; correct it, or give a view with "
            f"CAST({column} AS TEXT)"
        )


def _cast(type_: str) -> str:
    """Return the cast of a Postgres column to text, or ""."""
    is_list = type_.startswith("_")
    return "" if type_.removeprefix("_") in _PLAIN else "::text[]" if is_list else "::text"


def _schema(snapshot: DatabaseState, query: str) -> Any:
    """Return the names and types of the columns of a query."""
    with closing(snapshot.connection.cursor()) as cursor:
        if snapshot.kind == "duckdb":
            return cursor.sql(query).to_arrow_reader(BATCH_ROWS).schema
        cursor.execute(query)
        return pa.schema([(one.name, one.type) for one in cursor.fetch_record_batch().schema])


def _sqlite_types(snapshot: DatabaseState, place: str, columns: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the values of each type in all columns, in one pass: SQLite columns may mix types."""
    sums = (f"total(typeof({quoted(column)}) = {literal(type_)})" for column in columns for type_ in _FIRST)
    found = iter(snapshot.rows(f"SELECT {', '.join(sums)} FROM {place}")[0])
    counts = {column: {type_: int(next(found)) for type_ in _FIRST} for column in columns}
    return {column: {type_: n for type_, n in of.items() if n} for column, of in counts.items()}


def _type(types: Mapping[str, int]) -> str:
    """Return the type of an SQLite column: real for integers and reals, text without values."""
    if set(types) == {"integer", "real"}:
        return "real"
    return next(iter(types)) if len(types) == 1 else "text"


@dataclass(frozen=True)
class Database:
    """Location of a database: a file, or the address of a server."""

    name: str  # as in the spec
    path: Path | None
    address: str = field(default="", repr=False)  # may hold a password


@dataclass(frozen=True, eq=False)
class Databases:
    """Database snapshots of an import. Tables of the same database share one."""

    _opened: dict[str, DatabaseState] = field(default_factory=dict)

    def open_table(self, database: Database, table: str, order_by: str, key: str) -> DatabaseTable:
        """Open a table, and check that the values of `order_by` are unique."""
        return DatabaseTable.open(self.snapshot(database, key), table, order_by, key)

    def snapshot(self, database: Database, key: str) -> DatabaseState:
        """Return the snapshot of a database, created by the first call."""
        place = database.address or str(database.path)
        if place not in self._opened:
            path = database.path
            self._opened[place] = _of_server(database, key) if path is None else _of_file(path, key)
        return self._opened[place]

    def close(self) -> None:
        """Close all connections."""
        while self._opened:
            self._opened.popitem()[1].connection.close()


def database_of(given: str, folder: Path, environment: Mapping[str, str], key: str) -> Database:
    """Return the location of a database: as given, relative to the spec, or from the environment."""
    value = given
    if given.startswith(ENVIRONMENT):
        name = given.removeprefix(ENVIRONMENT)
        if name not in environment:
            raise ValueError(
                f"{key}: the environment has no variable {name}; set it to the path of the database, or to "
                "its postgresql:// address"
            )
        value = environment[name]
    if _ADDRESS.match(value):
        return Database(given, None, value)
    if "://" in value:
        raise ValueError(
            f"{key}: {given} is the address of an unsupported database: khop reads DuckDB and SQLite files "
            "and postgresql:// addresses; export the table to Parquet"
        )
    return Database(given, folder / value)


def _of_file(path: Path, key: str) -> DatabaseState:
    """Open a DuckDB or an SQLite file read-only."""
    place = f"{key}: {path.name}"
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise ValueError(
            f"{place}: {what} in {path.parent}; give the path of a DuckDB or SQLite file, or "
            'database = "env:NAME" for a postgresql:// address in a variable'
        )
    refuse_unreadable(path, place)
    with path.open("rb") as file:
        header = file.read(100)
    if not header.startswith(_HEADER):
        remedy = "close programs that write to it, or give the path of a DuckDB or SQLite file"
        try:
            connection = connected(str(path), read_only=True, enable_external_access="false")
            connection.execute("BEGIN TRANSACTION")
        except (duckdb.Error, OSError) as error:
            raise explained(error, place, remedy, "is not a DuckDB file, or is damaged") from None
        return DatabaseState(path.name, "duckdb", connection)
    page, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
    is_counted = header[24:28] == header[92:96]  # not set by early versions of SQLite
    if is_counted and path.stat().st_size < (page if page > 1 else 1 << 16) * pages:
        raise ValueError(f"{place}: is cut off; restore the file")
    # A transaction begins with the first query, and ends when the connection is closed.
    return DatabaseState(path.name, "sqlite", driver("sqlite").connect(f"file:{quote(str(path))}?mode=ro"))


def _of_server(database: Database, key: str) -> DatabaseState:
    """Connect to a server, and begin a transaction that reads one snapshot."""
    address, dbapi, place = database.address, driver("postgresql"), f"{key}: {database.name}"
    if "connect_timeout" not in address:
        separator = " " if "://" not in address else "&" if "?" in address else "?"
        address = f"{address}{separator}connect_timeout={_TIMEOUT_S}"
    try:
        connection = dbapi.connect(address)
    except dbapi.Error as error:
        remedy = "check the address, as postgresql://user@host/database, and test it with psql"
        place = f"{place}: cannot connect"
        raise explained(error, place, remedy, "the address is not valid", _REASONS) from None
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute(_BEGIN)
            cursor.execute(_STATE)
            (state,) = cursor.fetchone()
    except dbapi.Error as error:
        connection.close()
        reason = "the server gives no snapshot"
        raise explained(error, place, "read from the primary server", reason, _REASONS) from None
    return DatabaseState(database.name, "postgresql", connection, str(state))
