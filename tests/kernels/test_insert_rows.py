"""Rows put between the rows of a table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.insert_rows import insert_rows, insert_rows_reference

DTYPES = st.sampled_from(["int8", "int16", "int32", "int64", "float64", "bool"])


@given(DTYPES, st.integers(0, 9), st.sampled_from([(), (1,), (3,), (2, 2)]), st.data())
def test_it_inserts_as_numpy_does(dtype: str, rows: int, width: tuple[int, ...], data: st.DataObject) -> None:
    at = np.array(sorted(data.draw(st.lists(st.integers(0, rows), max_size=12))), np.int64)
    table = np.arange(rows * int(np.prod(width))).reshape(rows, *width).astype(dtype)
    added = (100 + np.arange(len(at) * int(np.prod(width)))).reshape(len(at), *width).astype(dtype)
    found = insert_rows(table, at, added)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found, insert_rows_reference(table, at, added))


def test_places_ascend_in_the_table() -> None:
    table, added = np.arange(3), np.arange(2)
    with pytest.raises(ValueError, match=r"place 1 at position 1: places must ascend in \[0, 3\]"):
        insert_rows(table, np.array([2, 1]), added)
    with pytest.raises(ValueError, match="place 4 at position 0"):
        insert_rows(table, np.array([4, 4]), added)
    with pytest.raises(ValueError, match="rows of float64"):
        insert_rows(table, np.array([0]), np.zeros(1))


def test_rows_of_no_bytes_are_counted() -> None:
    assert insert_rows(np.zeros((2, 0)), np.array([1]), np.zeros((1, 0))).shape == (3, 0)
