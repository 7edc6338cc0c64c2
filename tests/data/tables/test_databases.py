"""Addresses of Postgres servers, and errors that show no password. test_postgres_table.py has a real server."""

from __future__ import annotations

import socket
from pathlib import Path

import duckdb
import pytest

from khop.data.tables.databases import Database, Databases, DatabaseTable, database_of


def test_the_environment_names_a_file_or_a_server(tmp_path: Path) -> None:
    variables = {
        "BANK": "bank.duckdb",
        "URL": "postgresql://me:secret@host/db",
        "WORDS": "host=db user=me password=secret",
        "OTHER": "mysql://me:secret@host/db",
    }
    assert database_of("env:BANK", tmp_path, variables, "key").path == tmp_path / "bank.duckdb"
    assert database_of("a=b.duckdb", tmp_path, variables, "key").path == tmp_path / "a=b.duckdb"
    for name in ("URL", "WORDS"):
        server = database_of(f"env:{name}", tmp_path, variables, "key")
        assert server == Database(f"env:{name}", None, variables[name])
        assert "secret" not in repr(server)
    with pytest.raises(ValueError, match="no variable BONK"):
        database_of("env:BONK", tmp_path, variables, "key")
    with pytest.raises(ValueError, match="env:OTHER is the address of an unsupported database") as caught:
        database_of("env:OTHER", tmp_path, variables, "key")
    assert "secret" not in str(caught.value)


def opened(path: Path, table: str, order_by: str, key: str) -> DatabaseTable:
    return Databases().open_table(Database(path.name, path), table, order_by, key)


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE tx AS SELECT 999 - i AS id, i % 7 AS kind FROM range(1000) t(i)")
    return path


def test_rows_come_in_the_order_of_the_unique_column(bank: Path) -> None:
    table = opened(bank, "tx", "id", "nodes.tx")
    ids = [n for piece in table.pieces(["id"]) for n in piece().batch.column(0).to_pylist()]
    assert ids == list(range(1000))
    assert next(table.pieces(["kind"]))().row(0) == "bank.duckdb, table tx, row 1"
    assert table.num_rows == 1000


@pytest.mark.parametrize(
    "address", ["postgresql://h/db", "postgres:///db", "host=h user=me", "dbname = shop"]
)
def test_addresses_of_servers_are_known(address: str) -> None:
    assert database_of(address, Path(), {}, "key") == Database(address, None, address)


@pytest.mark.parametrize("path", ["shop.duckdb", "a=b.sqlite", "/data/hostess=1.db"])
def test_other_places_are_files(path: str) -> None:
    assert database_of(path, Path(), {}, "key") == Database(path, Path(path))


def test_a_server_that_is_not_there_is_refused_without_the_password() -> None:
    with socket.socket() as probe:  # bound, and not listening
        probe.bind(("127.0.0.1", 0))
        address = f"postgresql://me:secret-word@127.0.0.1:{probe.getsockname()[1]}/db"
        with pytest.raises(
            ValueError, match="nodes.user: env:SHOP: cannot connect: no server answers there; check"
        ) as caught:
            Databases().snapshot(Database("env:SHOP", None, address), "nodes.user")
    assert "secret-word" not in str(caught.value)
