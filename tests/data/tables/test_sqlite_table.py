"""Tables of SQLite files: types by their values, one snapshot for all tables of a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import khop
from khop.data.tables.databases import Database, Databases
from khop.data.tables.rows import Table


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    path = tmp_path / "a bank?.sqlite"  # "?" has a meaning in the address of a file
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE tx (id INTEGER PRIMARY KEY, note, sum, kind TEXT, mixed, flag, bytes)"
        )
        rows = [
            (
                4999 - i,
                "late" if i < 5 else None,
                i if i % 2 else i + 0.5,
                f"k{i % 7}",
                i if i else "x",
                None,
                b"a",
            )
            for i in range(5000)
        ]
        connection.executemany("INSERT INTO tx VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    return path


@pytest.fixture
def databases() -> Iterator[Databases]:
    opened = Databases()
    yield opened
    opened.close()


def opened(databases: Databases, path: Path, table: str = "tx", order_by: str = "id") -> Table:
    return databases.open_table(Database(path.name, path), table, order_by, "nodes.tx.database")


def test_rows_come_in_order_with_the_types_of_all_values(bank: Path, databases: Databases) -> None:
    table = opened(databases, bank)
    columns = ["id", "note", "sum", "flag", "bytes"]
    assert [str(table.schema.field(name).type) for name in columns] == [
        "int64", "string", "double", "string", "binary",
    ]  # fmt: skip
    rows = [row for piece in table.pieces(columns) for row in piece().batch.to_pylist()]
    assert [row["id"] for row in rows] == list(range(5000))
    assert [row["note"] for row in rows] == [None] * 4995 + ["late"] * 5
    assert [row["sum"] for row in rows[-3:]] == [2.5, 1.0, 0.5]
    assert next(table.pieces(["kind"]))().row(0) == "a bank?.sqlite, table tx, row 1"


def test_all_tables_of_a_file_are_of_one_snapshot(bank: Path, databases: Databases) -> None:
    with closing(sqlite3.connect(bank)) as writer:
        writer.execute("PRAGMA journal_mode = wal")  # readers and a writer at once
        first = opened(databases, bank)
        writer.execute("DELETE FROM tx WHERE id < 1000")
        writer.execute("CREATE TABLE other AS SELECT 1 AS id")
        writer.commit()
        second = opened(databases, bank)
        both = zip(first.pieces(["id"]), second.pieces(["id"]), strict=True)
        counts = [(len(one()), len(other())) for one, other in both]  # two readers at once
        assert sum(one for one, _ in counts) == sum(other for _, other in counts) == 5000
        with pytest.raises(ValueError, match="no table 'other'"):
            opened(databases, bank, "other")


def test_a_graph_of_a_file_is_that_of_the_same_rows_in_memory(bank: Path, tmp_path: Path) -> None:
    spec = tmp_path / "bank.toml"
    spec.write_text(
        '[nodes.tx]\ndatabase = "env:BANK"\ntable = "tx"\norder_by = "id"\nid = "id"\ncolumns.sum = "number"\n'
        'columns.kind = "category"\nwhere = "id >= 10"\n'
    )
    khop.import_tables(spec, tmp_path / "of-file", environment={"BANK": bank.name})
    numbers = list(range(10, 5000))
    sums = [float(4999 - i if i % 2 == 0 else 4999 - i + 0.5) for i in numbers]
    kinds = [f"k{(4999 - i) % 7}" for i in numbers]
    rows = pa.table({"id": numbers, "sum": sums, "kind": kinds})
    columns = {"sum": "number", "kind": "category"}
    khop.import_tables(
        {"nodes": {"tx": {"rows": rows, "id": "id", "columns": columns}}}, tmp_path / "of-memory"
    )
    first, second = (khop.open_folder(tmp_path / name).fingerprint for name in ("of-file", "of-memory"))
    assert first == second


def test_integers_that_are_no_real_are_refused_beside_reals(tmp_path: Path, databases: Databases) -> None:
    path = tmp_path / "bank.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE tx (id INTEGER PRIMARY KEY, sum)")
        connection.executemany("INSERT INTO tx VALUES (?, ?)", [(1, 0.5), (2, -(2**53)), (3, 2**53 + 1)])
    table = opened(databases, path)
    says = r"column 'sum' of .*tx is 9007199254740993 in the row with id = 3: not exact as a real, .*; correct it"
    with pytest.raises(ValueError, match=says):
        next(table.pieces(["sum"]))


def test_generated_columns_are_read(tmp_path: Path, databases: Databases) -> None:
    path = tmp_path / "bank.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        made = "twice INTEGER GENERATED ALWAYS AS (id * 2), half REAL AS (id * 0.5) STORED"
        connection.execute(f"CREATE TABLE tx (id INTEGER PRIMARY KEY, {made})")
        connection.execute("INSERT INTO tx VALUES (1), (2)")
    pieces = opened(databases, path).pieces(["twice", "half"])
    assert [row for piece in pieces for row in piece().batch.to_pylist()] == [
        {"twice": 2, "half": 0.5},
        {"twice": 4, "half": 1.0},
    ]
