from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.importing.shop import items, spec

from khop import import_tables, open_graph
from khop.importing.node_columns import raw_dtype, raw_values
from khop.importing.rows import Place, Rows


def test_raw_columns_keep_their_types() -> None:
    types = {
        pa.int32(): "int32",
        pa.uint32(): "int64",
        pa.float32(): "float32",
        pa.bool_(): "bool",
        pa.string(): "float64",
    }
    assert {dtype: raw_dtype(dtype) for dtype in types} == types
    rows = Rows(pa.record_batch({"n": ["1", None]}), Place("a.csv"))
    with pytest.raises(ValueError, match='a.csv, row 2: n is null; give kind = "number"'):
        raw_values(rows.column("n"), "n", rows)
    assert raw_values(pa.array(["1.5"]), "n", rows).tolist() == [1.5]


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
