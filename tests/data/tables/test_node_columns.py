from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tables.shop import items, spec
from khop import import_tables, open_graph
from khop.data.tables.node_columns import raw_dtype, raw_values
from khop.data.tables.rows import Place, TableRows


def test_raw_columns_keep_their_types() -> None:
    types = {
        pa.int32(): "int32",
        pa.uint32(): "int64",
        pa.float32(): "float32",
        pa.bool_(): "bool",
        pa.string(): "float64",
    }
    assert {dtype: raw_dtype(dtype) for dtype in types} == types
    rows = TableRows(pa.record_batch({"n": ["1", None]}), Place("a.csv"))
    with pytest.raises(ValueError, match='a.csv, row 2: n is null; give kind = "number"'):
        raw_values(rows.column("n"), "float64", "n", rows)
    assert raw_values(pa.array(["1.5"]), "float64", "n", rows).tolist() == [1.5]


def test_splits_have_labeled_nodes_alone(tmp_path: Path) -> None:
    table = items().append_column("part", pa.array(["train", "val", "test", "train"]))
    changes = {
        "splits": None, "nodes.item.rows": table, "nodes.item.label": "category",
        "nodes.item.split": {"column": "part"}, "nodes.item.columns": {"price": "raw"},
    }  # fmt: skip
    import_tables(spec(**changes), tmp_path / "out")
    graph = open_graph(tmp_path / "out")
    assert {name: graph.split(name)["item"].tolist() for name in graph.split_names} == {
        "train": [0],
        "val": [1],
    }
    assert graph.columns["item"]["price"].tolist() == [1, 2, 3, 6]


def test_raw_values_of_all_files_are_kept_whole(tmp_path: Path) -> None:
    narrow = pa.table({"id": ["a", "b"], "n": pa.array([1, 2], pa.int32())})
    wide = pa.table({"id": ["c", "d"], "n": pa.array([2**31 + 5, 2**40], pa.int64())})
    for name, table in (("1.parquet", narrow), ("2.parquet", wide)):
        pq.write_table(table, tmp_path / name)
    ends = {"source": "id", "destination": "id", "files": ["1.parquet", "2.parquet"], "columns": {"n": "raw"}}
    spec = {
        "nodes": {"item": {"files": ["1.parquet", "2.parquet"], "id": "id", "columns": {"n": "raw"}}},
        "edges": {"item self item": ends},
    }
    import_tables(spec, tmp_path / "out", folder=tmp_path)
    columns = open_graph(tmp_path / "out").columns
    for type_ in ("item", ("item", "self", "item")):
        assert columns[type_]["n"].tolist() == [1, 2, 2**31 + 5, 2**40]


def test_a_raw_value_beyond_int64_is_refused() -> None:
    array = pa.array([1, 2**63], pa.uint64())
    rows = TableRows(pa.record_batch({"n": array}), Place("a.parquet"))
    with pytest.raises(ValueError, match="a.parquet, row 2: n is 9223372036854775808: beyond int64"):
        raw_values(array, "int64", "n", rows)
    assert raw_values(array.slice(0, 1), "int64", "n", rows).tolist() == [1]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_of_text_keep_all_digits(numbers: list[int]) -> None:
    rows = TableRows(pa.record_batch({"n": [f" {number}" for number in numbers]}), Place("a.csv"))
    assert raw_values(rows.column("n"), "int64", "n", rows).tolist() == numbers


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (
            ["1.5", str(2**53 + 1)],
            "float64",
            "row 2: n is 9007199254740993: float64 loses its digits; give dtype",
        ),
        (["1", "1.5"], "int64", "row 2: n is '1.5': not an int64"),
        (["1", str(2**63)], "int64", "row 2: n is '9223372036854775808': not an int64"),
        ([1, 2**53 + 1], "float64", "row 2: n is 9007199254740993: beyond float64"),
        ([1.0, 1.5], "int64", "row 2: n is 1.5: beyond int64"),
        ([1.0, float("nan")], "int64", "row 2: n is nan: beyond int64"),
    ],
)
def test_a_raw_value_that_its_dtype_does_not_hold_is_refused(
    array: list[object], dtype: str, message: str
) -> None:
    rows = TableRows(pa.record_batch({"n": array}), Place("a.csv"))
    with pytest.raises(ValueError, match=message):
        raw_values(rows.column("n"), dtype, "n", rows)


def test_a_raw_column_of_text_has_the_dtype_of_the_spec(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "n": [str(2**53 + 1), "-1"]})
    column = {"kind": "raw", "dtype": "int64"}
    spec = {
        "nodes": {"item": {"rows": table, "id": "id", "columns": {"n": column}}},
        "edges": {
            "item self item": {"rows": table, "source": "id", "destination": "id", "columns": {"n": column}}
        },
    }
    import_tables(spec, tmp_path / "out")
    columns = open_graph(tmp_path / "out").columns
    for type_ in ("item", ("item", "self", "item")):
        assert columns[type_]["n"].tolist() == [2**53 + 1, -1]
