from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from khop.importing.memory_table import MemoryTable

VALUES = {"id": ["u1", "u2"], "age": [3, 4]}


@pytest.mark.parametrize(
    "rows", [pd.DataFrame(VALUES), pl.DataFrame(VALUES), pa.table(VALUES)], ids=lambda t: type(t).__module__
)
def test_tables_of_all_libraries_give_the_same_rows(rows: object) -> None:
    table = MemoryTable.of(rows, "nodes.user")
    assert [row for piece in table.pieces(["age", "id"]) for row in piece().batch.to_pylist()] == [
        {"age": 3, "id": "u1"},
        {"age": 4, "id": "u2"},
    ]


def test_other_objects_and_mixed_types_are_refused() -> None:
    with pytest.raises(
        ValueError, match="nodes.user: rows is of type dict: give a pandas, polars or Arrow table"
    ):
        MemoryTable.of({}, "nodes.user")
    with pytest.raises(ValueError, match="nodes.user: the column 'id' has values of several types"):
        MemoryTable.of(pd.DataFrame({"id": ["a", 1]}, dtype=object), "nodes.user")
