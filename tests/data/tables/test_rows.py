""""""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from khop.data.tables.rows import FileTable, Place, TableRows, check_columns, same_schema


def test_kept_rows_keep_their_places() -> None:
    rows = TableRows(pa.record_batch({"a": [10, 11, 12, 13]}), Place("a.csv", None, 100))
    kept = rows.keep(np.array([False, True, True, True])).keep(np.array([False, False, True]))
    assert kept.column("a").to_pylist() == [13]
    assert kept.row(0) == "a.csv, row 104"
    assert rows.keep(np.ones(4, bool)) is rows


def test_columns_of_all_files_are_known_and_widths_may_differ() -> None:
    one, other = pa.schema([("id", pa.int32()), ("a", pa.string())]), pa.schema([("id", pa.int64())])
    schema, lacking, mixed = same_schema([("a.parquet", one), ("b.parquet", other)], "key")
    assert (schema.names, lacking) == (["id"], {"a": "b.parquet"})
    assert mixed == {"id": "int32 in a.parquet and int64 in b.parquet"}


def test_mixed_types_are_refused_with_both_files_where_the_column_is_read() -> None:
    schemas = [
        ("a.parquet", pa.schema([("id", pa.int64()), ("x", pa.int64())])),
        ("b.parquet", pa.schema([("id", pa.string()), ("x", pa.int64())])),
    ]
    table = FileTable([(name, Path(name)) for name, _ in schemas], *same_schema(schemas, "k"), "k")
    check_columns(table, {"x": "nodes.user.columns.x"})
    with pytest.raises(
        ValueError, match="nodes.user.id: column 'id' is int64 in a.parquet and string in b.par"
    ):
        check_columns(table, {"id": "nodes.user.id"})


@pytest.mark.parametrize(
    ("types", "widest"),
    [
        ([pa.int32(), pa.int64()], pa.int64()),
        ([pa.uint8(), pa.int8()], pa.int16()),
        ([pa.float32(), pa.float64()], pa.float64()),
        ([pa.null(), pa.int64(), pa.null(), pa.float64()], pa.float64()),
        ([pa.int64(), pa.float32()], pa.float64()),
        ([pa.timestamp("s"), pa.timestamp("ns")], pa.timestamp("ns")),
        ([pa.decimal128(9, 2), pa.decimal128(9, 4)], pa.decimal128(11, 4)),
        ([pa.list_(pa.null()), pa.list_(pa.int32()), pa.list_(pa.float64())], pa.list_(pa.float64())),
        ([pa.int32(), pa.int32()], pa.int32()),
        ([pa.string(), pa.large_string()], pa.string()),
    ],
)
def test_a_column_has_the_widest_type_of_all_files(types: list[pa.DataType], widest: pa.DataType) -> None:
    schemas = [(f"{number}.parquet", pa.schema([("a", dtype)])) for number, dtype in enumerate(types)]
    assert same_schema(schemas, "key")[0].field("a").type == widest
