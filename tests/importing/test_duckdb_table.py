from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from khop.importing.duckdb_table import DuckDbTable


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE tx AS SELECT 999 - i AS id, i % 7 AS kind FROM range(1000) t(i)")
    return path


def test_rows_come_in_the_order_of_the_unique_column(bank: Path) -> None:
    table = DuckDbTable.open(bank, "tx", "id", "nodes.tx")
    ids = [n for piece in table.pieces(["id"]) for n in piece().batch.column(0).to_pylist()]
    assert ids == list(range(1000))
    assert next(table.pieces(["kind"]))().row(0) == "bank.duckdb, table tx, row 1"
    assert table.num_rows == 1000


def test_an_order_that_is_not_unique_is_refused(bank: Path) -> None:
    with pytest.raises(
        ValueError, match="order_by 'kind' of bank.duckdb, table tx has 7 values in 1,000 rows"
    ):
        DuckDbTable.open(bank, "tx", "kind", "nodes.tx")


def test_missing_names_are_refused_with_the_nearest(bank: Path) -> None:
    with pytest.raises(ValueError, match="no table 'txs'; did you mean tx"):
        DuckDbTable.open(bank, "txs", "id", "nodes.tx")
    with pytest.raises(ValueError, match="no column 'kindd' in bank.duckdb, table tx; did you mean kind"):
        DuckDbTable.open(bank, "tx", "kindd", "nodes.tx")


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.duckdb").write_text("no database")
    with pytest.raises(
        ValueError, match="text.duckdb: is not a DuckDB file, or is damaged; close programs that write"
    ):
        DuckDbTable.open(tmp_path / "text.duckdb", "tx", "id", "nodes.tx")


def test_a_view_reads_no_other_file(bank: Path) -> None:
    other = bank.with_name("other.csv")
    other.write_text("id\n1\n")
    with duckdb.connect(str(bank)) as connection:
        connection.execute(f"CREATE VIEW outside AS SELECT * FROM read_csv('{other}')")
    with pytest.raises(
        ValueError, match="bank.duckdb, table outside: reads another file; a view reads this file alone"
    ):
        DuckDbTable.open(bank, "outside", "id", "nodes.tx")
