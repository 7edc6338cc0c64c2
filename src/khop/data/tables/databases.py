"""Databases of a spec: DuckDB and SQLite files, and Postgres servers, each read in one snapshot.

Checks and pieces that tables of all databases share: their rows have the order of a unique column.

A table of a DuckDB file, read in one snapshot in the order of a unique column.

A table of an SQLite file, read through ADBC in the order of a unique column.

A table of a Postgres database, read through ADBC in the order of a unique column.

One snapshot of a Postgres database for all tables of an import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from khop.data.tables.files import BATCH_ROWS, literal, quoted
from khop.data.tables.packages import driver, duckdb, explained, pa, reading
from khop.data.tables.read_spec import nearest
from khop.data.tables.rows import Piece, Place, Rows, Table, total_bytes


def check_table(table: str, there: Sequence[str], database: str, key: str) -> None:
    """Raise ValueError unless the database has the table."""
    if table not in there:
        raise ValueError(f"{key}: {database}: no table {table!r}; {nearest(table, there)}")


def check_order(
    order_by: str, columns: Sequence[str], counts: Callable[[str], tuple[int, int]], name: str, key: str
) -> int:
    """Return the rows of a table, if `order_by` is a column with another value in each; else ValueError.

    `counts` returns the rows and the different values of a column, whose name is quoted.
    """
    if order_by not in columns:
        raise ValueError(f"{key}: order_by: no column {order_by!r} in {name}; {nearest(order_by, columns)}")
    rows, distinct = counts(quoted(order_by))
    if rows != distinct:
        raise ValueError(
            f"{key}: order_by {order_by!r} of {name} has {distinct:,} values in {rows:,} rows, so rows have "
            "no fixed order; give a unique column"
        )
    return rows


def batches_as_pieces(batches: Iterable[Any], name: str) -> Iterator[Piece]:
    """Yield record batches, which come in order and have been read already."""
    first = 0
    for batch in batches:
        yield partial(Rows, batch, Place(name, None, first))
        first += batch.num_rows


def first_line(error: BaseException) -> str:
    """Return the first line of a driver's message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


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


_ADDRESS = re.compile(r"postgres(ql)?://|\s*(host|hostaddr|port|dbname|user|service)\s*=", re.IGNORECASE)
_PASSWORD = re.compile(r"password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)
_TIMEOUT_S = 10
_BEGIN = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
# The driver's own message may repeat a part of the address, and so of a password.
_REASONS = {
    "authentication failed|no password supplied": "the user or the password is refused",
    "no pg_hba.conf entry": "the server does not let this user in from here",
    "Connection refused|No such file or directory": "no server answers there",
    "could not translate host name": "the host is not known",
    "timeout|timed out": f"the server does not answer within {_TIMEOUT_S} s",
    "database .* does not exist": "it has no database of this name",
    "role .* does not exist": "it has no user of this name",
    "SSL|certificate": "the encrypted connection fails",
    "too many": "it has no free connection",
}


def is_postgres(address: str) -> bool:
    """Return True for the address of a Postgres database: a URI, or words such as host=..."""
    return _ADDRESS.match(address) is not None


@dataclass(frozen=True, eq=False)
class PostgresSnapshot:
    """A snapshot, exported by a transaction that stays open, and connections that read it."""

    name: str  # as in the spec, without password
    state: str  # changes when something is written in the server
    _address: str = field(repr=False)
    _exported: str
    _owner: Any
    _idle: list[Any] = field(default_factory=list)

    @classmethod
    def open(cls, address: str, name: str, key: str) -> PostgresSnapshot:
        """Connect and export a snapshot; ValueError says why this fails, and shows no password."""
        owner = _connect(address, name, key)
        try:
            found = _executed(
                owner,
                _BEGIN,
                "SELECT pg_export_snapshot(), current_database() || ' ' || txid_current_snapshot()::text",
            )[0]
        except driver("postgresql").Error as error:
            owner.close()
            shown = _without_password(first_line(error), address)
            raise ValueError(f"{key}: {name}: no snapshot ({shown}); read from the primary server") from None
        return cls(name, str(found[1]), address, str(found[0]), owner)

    @contextmanager
    def reading(self, key: str) -> Iterator[Any]:
        """Yield a connection that reads the snapshot, for one query at a time."""
        connection = self._idle.pop() if self._idle else self._joined(key)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def shown(self, error: BaseException) -> str:
        """Return the first line of a driver's message without the password."""
        return _without_password(first_line(error), self._address)

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._idle, self._owner):
            connection.close()
        self._idle.clear()

    def _joined(self, key: str) -> Any:
        connection = _connect(self._address, self.name, key)
        _executed(connection, _BEGIN, f"SET TRANSACTION SNAPSHOT {literal(self._exported)}")
        return connection


def answer(connection: Any, query: str) -> list[Any]:
    """Return the rows of a query."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        rows: list[Any] = cursor.fetchall()
        return rows


def _executed(connection: Any, *statements: str) -> list[Any]:
    """Run statements, and return the rows of the last one if it is a query."""
    with closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)
        rows: list[Any] = cursor.fetchall() if statements[-1].startswith("SELECT") else []
        return rows


def _connect(address: str, name: str, key: str) -> Any:
    dbapi = driver("postgresql")
    try:
        return dbapi.connect(_with_timeout(address))
    except dbapi.Error as error:
        reasons = (reason for words, reason in _REASONS.items() if re.search(words, str(error)))
        reason = next(reasons, "the address is not valid")
        raise ValueError(
            f"{key}: {name}: cannot connect: {reason}; check the address, as "
            "postgresql://user@host/database, and test it with psql"
        ) from None


def _with_timeout(address: str) -> str:
    if "connect_timeout" in address:
        return address
    if "://" not in address:
        return f"{address} connect_timeout={_TIMEOUT_S}"
    return f"{address}{'&' if '?' in address else '?'}connect_timeout={_TIMEOUT_S}"


def _without_password(message: str, address: str) -> str:
    for word in sorted(_passwords(address), key=len, reverse=True):
        message = message.replace(word, "***")
    return message


def _passwords(address: str) -> set[str]:
    """Return the password of an address as written and decoded."""
    found = [match.strip("'") for match in _PASSWORD.findall(address)]
    if "://" in address:
        ends = urlsplit(address).netloc.rpartition("@")[0]
        found.append(ends.partition(":")[2])
    return {form for word in found for form in (word, unquote(word)) if form}


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


ENVIRONMENT = "env:"


@dataclass(frozen=True)
class Database:
    """The place of a database: a file, or the address of a server."""

    name: str  # as in the spec
    path: Path | None
    address: str = field(default="", repr=False)  # may hold a password


@dataclass(frozen=True, eq=False)
class Databases:
    """Connections of an import. Tables of one database share a snapshot."""

    _servers: dict[str, PostgresSnapshot] = field(default_factory=dict)
    _files: dict[Path, Any] = field(default_factory=dict)  # SQLite

    def open_table(self, database: Database, table: str, order_by: str, key: str) -> Table:
        """Open a table, and check that `order_by` has another value in each row."""
        path = database.path
        if path is None:
            return PostgresTable.open(self.server(database, key), table, order_by, key)
        if not path.is_file():
            raise ValueError(
                f"{key}: {path.name}: no such file in {path.parent}; give the path of a DuckDB or SQLite "
                'file, or database = "env:NAME" for a postgresql:// address in a variable'
            )
        with path.open("rb") as file:
            is_sqlite = file.read(len(HEADER)) == HEADER
        if not is_sqlite:
            return DuckDbTable.open(path, table, order_by, key)
        if path not in self._files:
            self._files[path] = connect(path)
        return SqliteTable.open(path, self._files[path], table, order_by, key)

    def server(self, database: Database, key: str) -> PostgresSnapshot:
        """Return the snapshot of a server; the first call makes it."""
        if database.address not in self._servers:
            self._servers[database.address] = PostgresSnapshot.open(database.address, database.name, key)
        return self._servers[database.address]

    def close(self) -> None:
        """Close all connections."""
        for opened in (*self._servers.values(), *self._files.values()):
            opened.close()
        self._servers.clear()
        self._files.clear()


def database_of(given: str, folder: Path, environment: Mapping[str, str], key: str) -> Database:
    """Return the place of a database: as given, relative to the spec, or from the environment."""
    value = given
    if given.startswith(ENVIRONMENT):
        name = given.removeprefix(ENVIRONMENT)
        if name not in environment:
            raise ValueError(
                f"{key}: the environment has no variable {name}; set it to the path of the database, or to "
                "its postgresql:// address"
            )
        value = environment[name]
    if is_postgres(value):
        return Database(given, None, value)
    if "://" in value:
        raise ValueError(
            f"{key}: {given} is the address of a database that is not read: DuckDB and SQLite files and "
            "postgresql:// are; export the table to Parquet"
        )
    return Database(given, folder / value)
