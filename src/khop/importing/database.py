"""Databases of a spec: DuckDB and SQLite files, and Postgres servers, each read in one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from khop.importing import sqlite_table
from khop.importing.duckdb_table import DuckDbTable
from khop.importing.postgres_snapshot import PostgresSnapshot, is_postgres
from khop.importing.postgres_table import PostgresTable
from khop.importing.rows import Table
from khop.importing.sqlite_table import HEADER, SqliteTable

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
            self._files[path] = sqlite_table.connect(path)
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
