"""Columns in pieces are read as one column."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.features.store import Rows
from khop.features.table import FeatureTable, read_into, read_rows
from khop.schema import ColumnSpec, Schema

SPECS = {"x": ColumnSpec("int8", (3,), scales=(0.5, 1.0, 2.0)), "age": ColumnSpec("int64", ())}
COLUMNS = {"x": torch.arange(30).view(10, 3).to(torch.int8), "age": torch.arange(10) * 3}


@given(
    ids=st.lists(st.integers(0, 9), max_size=12),
    cuts=st.lists(st.integers(0, 10), max_size=3).map(sorted),
    threads=st.integers(1, 3),
)
def test_rows_are_those_of_the_joined_columns(ids: list[int], cuts: list[int], threads: int) -> None:
    pieces = {name: column.tensor_split(cuts) for name, column in COLUMNS.items()}
    rows = Rows(torch.tensor(ids, dtype=torch.int64), ("x", "age"))
    found = read_rows(pieces, SPECS, "user", rows, threads)
    whole = FeatureTable.of(Schema(("user",), (), columns={"user": SPECS}), {"user": COLUMNS})
    for name, expected in whole.gather({"user": rows})["user"].items():
        assert torch.equal(found[name], expected)
    out = {
        name: torch.empty(len(ids), *column.shape[1:], dtype=column.dtype) for name, column in COLUMNS.items()
    }
    read_into(pieces, rows.ids, out)
    for name, column in COLUMNS.items():
        assert torch.equal(out[name], column[rows.ids])


def test_a_row_behind_the_last_piece_is_named() -> None:
    pieces = {name: column.split(4) for name, column in COLUMNS.items()}
    with pytest.raises(ValueError, match="10"):
        read_rows(pieces, SPECS, "user", Rows(torch.tensor([3, 10]), ("age",)))
