""""""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from khop.data.tables.files import MemoryTable
from khop.data.tables.rows import FileTable, Place, TableRows, check_columns, same_schema


def test_kept_rows_keep_their_places() -> None:
    rows = TableRows(pa.record_batch({"a": [10, 11, 12, 13]}), Place("a.csv", None, 100))
    kept = rows.keep(np.array([False, True, True, True])).keep(np.array([False, False, True]))
    assert kept.column("a").to_pylist() == [13]
    assert kept.row(0) == "a.csv, row 104"
    assert rows.keep(np.ones(4, bool)) is rows


def test_a_missing_column_is_named_with_the_nearest() -> None:
    table = MemoryTable.of(pa.table({"user_id": [1], "Age": [2]}), "nodes.user")
    check_columns(table, {"user_id": "nodes.user.id"})
    with pytest.raises(ValueError, match=r"nodes.user.id: no column 'userid' in .*; did you mean user_id\?"):
        check_columns(table, {"userid": "nodes.user.id"})
    with pytest.raises(ValueError, match=r"did you mean Age\?"):
        check_columns(table, {"age": "nodes.user.columns.age"})


def test_columns_of_all_files_are_known_and_widths_may_differ() -> None:
    one, other = pa.schema([("id", pa.int32()), ("a", pa.string())]), pa.schema([("id", pa.int64())])
    schema, lacking = same_schema([("a.parquet", one), ("b.parquet", other)], "key")
    assert (schema.names, lacking) == (["id"], {"a": "b.parquet"})


def test_a_file_with_two_columns_of_a_name_is_named() -> None:
    twice = pa.schema([("id", pa.int64()), ("id", pa.int64())])
    with pytest.raises(ValueError, match=r"b.parquet: the column 'id' occurs twice; rename one"):
        same_schema([("a.parquet", pa.schema([("id", pa.int64())])), ("b.parquet", twice)], "key")


def test_mixed_types_are_refused_with_both_files() -> None:
    schemas = [
        ("a.parquet", pa.schema([("id", pa.int64())])),
        ("b.parquet", pa.schema([("id", pa.string())])),
    ]
    with pytest.raises(ValueError, match="column 'id' is int64 in a.parquet and string in b.parquet"):
        same_schema(schemas, "nodes.user.files")


@pytest.mark.parametrize(
    ("types", "widest"),
    [
        ([pa.int32(), pa.int64()], pa.int64()),
        ([pa.uint8(), pa.int8()], pa.int64()),
        ([pa.float32(), pa.float64()], pa.float64()),
        ([pa.int32(), pa.int32()], pa.int32()),
        ([pa.string(), pa.large_string()], pa.string()),
    ],
)
def test_a_column_has_the_widest_type_of_all_files(types: list[pa.DataType], widest: pa.DataType) -> None:
    schemas = [(f"{number}.parquet", pa.schema([("a", dtype)])) for number, dtype in enumerate(types)]
    assert same_schema(schemas, "key")[0].field("a").type == widest


def test_a_table_of_files_has_their_names(tmp_path: Path) -> None:
    files = [(name, tmp_path / name) for name in ("a", "b")]
    table = FileTable(files, pa.schema([]), {}, "nodes.user.files")
    assert table.name == "a and 1 more"
