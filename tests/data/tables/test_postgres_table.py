"""Tables of a real Postgres server, which `make test-all` installs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as postgres
import pyarrow as pa
import pytest

import khop
from khop.data.tables.databases import Database, Databases
from support.postgres_server import PASSWORD, WRITTEN, postgres_server, programs

pytestmark = pytest.mark.long
SPEC = """
[nodes.user]
database = "env:SHOP"
table = "users"
order_by = "number"
id = "user_id"
columns.age = "number"
[nodes.item]
[edges."user buys item"]
database = "env:SHOP"
table = "sales.events"
order_by = "n"
where = "kind = 'buy'"
source = "user_id"
destination = "item_id"
time = "ts"
orphans = "refuse"
"""
TABLES = [
    "CREATE TABLE users (number int8 PRIMARY KEY, user_id uuid, age numeric(4, 1))",
    "CREATE SCHEMA sales",
    "CREATE TABLE sales.events (n int8 UNIQUE, user_id uuid, item_id varchar(20), kind text, ts timestamptz)",
    "INSERT INTO users SELECT 5000 - i, md5(i::text)::uuid, 20 + i % 50 + 0.5 FROM generate_series(0, 4999) i",
    "INSERT INTO sales.events SELECT i, md5((i % 5000)::text)::uuid, 'item-' || i % 300, "
    "CASE WHEN i % 4 = 0 THEN 'view' ELSE 'buy' END, timestamptz '2020-01-01Z' + i * interval '1 second' "
    "FROM generate_series(0, 19999) i",
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if programs() is None:
        pytest.skip("Postgres is not installed; make test-all installs it")
    with postgres_server() as address:
        run(address, *TABLES)
        yield address


def run(address: str, *statements: str) -> None:
    with postgres.connect(address, autocommit=True) as connection, closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)


def imported(address: str, tmp_path: Path, name: str = "out", **settings: Any) -> khop.Graph:  # noqa: ANN401
    (tmp_path / "shop.toml").write_text(SPEC)
    khop.import_tables(
        tmp_path / "shop.toml", tmp_path / name, environment={**os.environ, "SHOP": address}, **settings
    )
    return khop.open_graph(tmp_path / name)


def arrow(address: str, query: str) -> pa.Table:
    with postgres.connect(address) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return cursor.fetch_arrow_table()


def test_a_graph_of_a_server_is_that_of_the_same_rows_in_memory(address: str, tmp_path: Path) -> None:
    of_server = imported(address, tmp_path)
    users = arrow(address, "SELECT user_id::text, age::float8 AS age FROM users ORDER BY number")
    events = arrow(
        address, "SELECT user_id::text, item_id, ts FROM sales.events WHERE kind = 'buy' ORDER BY n"
    )
    spec = {
        "nodes": {"user": {"rows": users, "id": "user_id", "columns": {"age": "number"}}, "item": {}},
        "edges": {
            "user buys item": {"rows": events, "source": "user_id", "destination": "item_id", "time": "ts"}
        },
    }
    khop.import_tables(spec, tmp_path / "memory")
    digests = [khop.open_folder(tmp_path / name).fingerprint for name in ("out", "memory")]
    assert digests[0] == digests[1]
    assert of_server.num_edges(("user", "buys", "item")) == 15_000
    assert khop.open_ids(tmp_path / "out", "user").ids([0]) == [users["user_id"][0].as_py()]
    text = "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert not any(word in text for word in (PASSWORD, WRITTEN, "127.0.0.1", "SHOP"))


def test_all_tables_are_read_in_one_snapshot(address: str) -> None:
    databases = Databases()
    database = Database("env:SHOP", None, address)
    users = databases.open_table(database, "users", "number", "nodes.user")
    run(address, "CREATE TABLE more AS SELECT 1 AS n", "DELETE FROM users WHERE number = 1")
    try:
        again = databases.open_table(database, "users", "number", "nodes.user")
        events = databases.open_table(database, "sales.events", "n", "edges")
        with pytest.raises(ValueError, match="env:SHOP: no table 'more'; there are"):
            databases.open_table(database, "more", "n", "nodes.more")
        assert len(next(users.pieces(["number"]))()) > 0  # a reader that stops early
        for table in (users, again):
            assert sum(len(piece()) for piece in table.pieces(["number"])) == 5000
        assert sum(len(piece()) for piece in events.pieces(["n"])) == 20_000
    finally:
        databases.close()
        run(address, "DROP TABLE more", "INSERT INTO users VALUES (1, md5('4999')::uuid, 69.5)")


def test_a_table_without_permission_is_refused(address: str) -> None:
    run(address, "CREATE ROLE guest LOGIN PASSWORD 'guest-word'")
    databases = Databases()
    guest = address.replace(f"shop:{WRITTEN}", "guest:guest-word")
    try:
        with pytest.raises(
            ValueError, match="env:SHOP, table users: the user has no permission to read it; grant SELECT"
        ) as caught:
            databases.open_table(Database("env:SHOP", None, guest), "users", "number", "nodes.user")
        assert "guest-word" not in str(caught.value)
    finally:
        databases.close()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda address: address.replace(WRITTEN, "another-word"), "the user or the password is refused"),
        (lambda address: address.replace("/postgres", "/nothing"), "it has no database of this name"),
        (lambda address: address.replace(WRITTEN, WRITTEN.replace("%25", "%zz")), "the address is not valid"),
    ],
)
def test_no_connection_shows_a_password(
    address: str, tmp_path: Path, wrong: Callable[[str], str], reason: str
) -> None:
    with pytest.raises(
        ValueError, match=f"nodes.user.database: env:SHOP: cannot connect: {reason}"
    ) as caught:
        imported(wrong(address), tmp_path)
    assert not any(word in str(caught.value) for word in (PASSWORD, WRITTEN, "s3cr", "t%2F", "another-word"))
    assert not (tmp_path / "out").exists()


def test_an_import_that_was_ended_goes_on_unless_something_was_written(address: str, tmp_path: Path) -> None:
    def reports(stop: str = "") -> int:
        seen: list[str] = []

        def notice(what: str, done: int, total: int) -> None:
            seen.append(what)
            if what == stop:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            imported(address, tmp_path, notice=notice)
        return len(seen)

    whole, after_edges = reports(), "columns of user"
    right = (tmp_path / "out" / "graph.json").read_text()
    shutil.rmtree(tmp_path / "out")
    reports(after_edges)
    assert reports() < whole
    assert (tmp_path / "out" / "graph.json").read_text() == right
    shutil.rmtree(tmp_path / "out")
    reports(after_edges)
    run(address, "CREATE TABLE something (n int)", "DROP TABLE something")
    assert reports() == whole
    assert (tmp_path / "out" / "graph.json").read_text() == right


def test_columns_have_the_types_of_the_server_or_are_text(address: str) -> None:
    run(
        address,
        "CREATE TABLE kinds (n int2, a numeric, u uuid, l float8[], m numeric[], j jsonb, c char(3), d date, b bool)",
        "INSERT INTO kinds VALUES (1, 12345678901234567890.5, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', "
        "'{1, 2.5}', '{1.50}', '{\"k\": 1}', 'x', '2020-02-29', true)",
    )
    databases = Databases()
    try:
        table = databases.open_table(Database("env:SHOP", None, address), "kinds", "n", "nodes.kind")
        row = next(iter(table.pieces(table.schema.names)))().batch.to_pylist()[0]
    finally:
        databases.close()
    assert [str(field.type) for field in table.schema] == [
        "int16", "string", "string", "list<item: double>", "list<item: string>", "string", "string", "date32[day]",
        "bool",
    ]  # fmt: skip
    assert row["a"] == "12345678901234567890.5"
    assert row["u"] == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert (row["l"], row["m"], row["c"]) == ([1.0, 2.5], ["1.50"], "x")
