""""""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from khop.data.tables.rows import Place, TableRows
from khop.data.tables.source import ROW_BYTES, OpenSource, ReadMeter, SourceFolder, Where
from khop.data.tables.spec import NodeSpec

FOLDER = SourceFolder(Path(), {})
TABLE = pa.table({"id": ["a", "b", "c"], "n": [1, 2, 3]})


def test_filters_apply_one_after_the_other() -> None:
    source = OpenSource.open(NodeSpec(rows=TABLE, id="id", where="n > 1"), "nodes.user", FOLDER)
    twice = source.filtered("n < 3", "key")
    assert [row["id"] for piece in source.pieces(["id"]) for row in piece().batch.to_pylist()] == ["b", "c"]
    assert [piece().column("id").to_pylist() for piece in twice.pieces(["id"])] == [["b"]]
    assert source.filtered(None, "key") is source


def test_files_are_relative_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\nx\n")
    source = OpenSource.open(NodeSpec(files=("a.csv",), id="id"), "nodes.user", SourceFolder(tmp_path, {}))
    assert source.is_untyped
    with pytest.raises(ValueError, match="nodes.user.id: no column 'idd'"):
        source.check({"idd": "nodes.user.id"})


def test_rows_of_threads_are_reported_once_and_stay_within_the_total() -> None:
    seen: list[tuple[str, int, int]] = []
    meter = ReadMeter(lambda *report: seen.append(report))
    meter.expect(10, 40)
    meter.begin("ids of user")
    meter.read(4)
    meter.read(2)
    meter.report()
    meter.report()
    assert seen == [("ids of user", 0, 200), ("ids of user", 6 * ROW_BYTES, 200)]
    meter.read(1000)  # a table that was larger than estimated
    meter.report()
    assert seen[-1] == ("ids of user", 200, 200)
    written = meter.end(300)
    meter.read(5)
    meter.report()
    assert (written.done, written.total) == (200, 500)


def test_an_import_reports_all_rows_it_reads(tmp_path: Path) -> None:
    names = [f"u{number}" for number in range(1000)]
    pq.write_table(pa.table({"id": names}), tmp_path / "users.parquet")
    ends = np.random.default_rng(0).integers(1000, size=(2, 20_000))
    events = {"a": [names[at] for at in ends[0]], "b": ends[1], "price": ends[0] / 7}
    pq.write_table(pa.table(events), tmp_path / "events.parquet", row_group_size=3000)
    (tmp_path / "spec.toml").write_text(
        '[nodes.user]\nfiles = ["users.parquet"]\nid = "id"\n[nodes.item]\n[edges."user buys item"]\n'
        'files = ["events.parquet"]\nwhere = "price > 10"\nsource = "a"\ndestination = "b"\n'
        'columns.price = "number"\n'
    )
    seen: list[tuple[str, int, int]] = []
    khop.import_tables(tmp_path / "spec.toml", tmp_path / "out", notice=lambda *report: seen.append(report))
    reading = [report for report in seen if report[0].startswith("edges user buys item")]
    assert len(reading) > 10  # not once per table
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1] > 0.9 * seen[-1][2]  # the bytes to write are an estimate
    assert all(done <= total for _, done, total in seen)
    read = (1000 + 3 * 20_000) * ROW_BYTES  # users; events for the ids of items, for prices and for the edges
    assert max(done for what, done, _ in reading) == read


BATCH = pa.record_batch(
    {"kind": ["buy", "view", None, "buy"], "price": [1.5, 2.0, 3.0, None], "text": ["1.5", "2", "x", ""]}
)
KEY = 'edges."user buys item".where'


def kept(expression: str, rows: TableRows | None = None) -> list[int]:
    rows = rows or TableRows(BATCH, Place("events.csv"))
    found = Where.of(expression, BATCH.schema, KEY).apply(rows)
    return list(range(len(rows))) if found.numbers is None else found.numbers.tolist()


@pytest.mark.core(4)
@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("kind = 'buy'", [0, 3]),
        ("kind <> 'buy'", [1]),  # null is not true
        ("kind IS NULL", [2]),
        ("price > 1.6 AND kind IN ('view', 'buy')", [1]),
        ("coalesce(price, 0) BETWEEN 0 AND 1.9 -- a comment", [0, 3]),
        ("CASE WHEN kind = 'view' THEN true ELSE false END", [1]),
        ("lower(KIND) LIKE 'b%' OR rows.price = 3", [0, 2, 3]),
        ("try_cast(text AS DOUBLE) < 1.9", [0]),
        ("true", [0, 1, 2, 3]),
    ],
)
def test_rows_for_which_the_expression_is_true_are_kept(expression: str, rows: list[int]) -> None:
    assert kept(expression) == rows


def test_kept_rows_know_their_place() -> None:
    rows = Where.of("kind = 'buy'", BATCH.schema, KEY).apply(TableRows(BATCH, Place("a.parquet", 2, 10)))
    again = Where.of("price IS NULL", BATCH.schema, KEY).apply(rows)
    assert again.row(0) == "a.parquet, row group 2, row 14"


@pytest.mark.core(8)
@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("kind = (SELECT 'buy')", "has a subquery"),
        ("EXISTS (SELECT 1)", "has a subquery"),
        ("kind IN (SELECT text FROM rows)", "has a subquery"),
        ("random() < 0.5", r"calls random\(\)"),
        ("now() > TIMESTAMP '2020-01-01'", r"calls now\(\)"),
        ("current_date > DATE '2020-01-01'", r"calls current_date\(\)|no column 'current_date'|calls today"),
        ("current_localtimestamp() > TIMESTAMP '2020-01-01'", r"calls current_localtimestamp\(\)"),
        ("sum(price) > 3", r"calls sum\(\)"),
        ("row_number() OVER () < 2", "has a window function"),
        ("kind = $1", "has a parameter"),
        ("COLUMNS('k.*') = 'buy'", "has a star"),
        ("getenv('HOME') = 'x'", r"calls getenv\(\)"),
        ("current_setting('threads') = '1'", r"calls current_setting\(\)"),
        ("nextval('s') = 1", r"calls nextval\(\)"),
        ("len(list_transform([1], x -> x)) = 1", "has a lambda|calls"),
        ("true FROM read_csv('/etc/passwd'", "is not one SQL expression|more than one"),
        ("true) FROM rows WHERE (price > 1", "is not one SQL expression|is more than one"),
        ("true); DROP TABLE rows; SELECT (true", "is not one SQL expression"),
        ("true, false", "is not one SQL expression|more than one|is TUPLE"),
        ("kind =", "is not one SQL expression"),
        ("knd = 'buy'", "no column 'knd'; did you mean kind"),
        ('kind = "buy"', "no column 'buy'.*text needs quotes"),
        ("price", "is DOUBLE: must be true or false"),
        ("text > 1", "cast them, as price::DOUBLE"),
    ],
)
def test_anything_else_is_refused_with_the_key(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Where.of(expression, BATCH.schema, KEY)
    assert str(caught.value).startswith(KEY)


def test_a_failing_cast_names_the_file() -> None:
    with pytest.raises(ValueError, match=r"events.csv, row 3: .*fails for text = 'x'; use try_cast"):
        kept("text::DOUBLE > 1")


def test_it_reads_no_file_even_if_a_function_would(tmp_path: Path) -> None:
    from khop.data.tables.packages import duckdb
    from khop.data.tables.source import locked_connection

    (tmp_path / "a.csv").write_text("x\n1\n")
    connection = locked_connection()
    with pytest.raises(duckdb.Error):
        connection.sql(f"SELECT * FROM '{tmp_path / 'a.csv'}'").fetchall()
    with pytest.raises(duckdb.Error):
        connection.execute("SET enable_external_access=true")


def test_threads_share_an_expression() -> None:
    where = Where.of("price > 10", pa.schema([("price", pa.int64())]), KEY)
    pieces = [
        TableRows(pa.record_batch({"price": np.arange(start, start + 20)}), Place("t", None, start))
        for start in range(0, 200, 20)
    ]
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda rows: len(where.apply(rows)), pieces))
    assert counts == [9, *[20] * 9]
