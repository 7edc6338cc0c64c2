"""Shapes and dtypes that counts ask for."""

from __future__ import annotations

from khop.graph.expected import ID_ARRAYS, Expected
from khop.graph.npy import ArrayEntry


def test_an_array_fits_by_rows_and_dtype() -> None:
    entry = ArrayEntry("int64", (3,), 152, "")
    assert Expected(3, ("int64",)).fits(entry)
    assert Expected(None, ("int32", "int64")).fits(entry)
    assert not Expected(4).fits(entry)
    assert not Expected(3, ("int32",)).fits(entry)
    assert str(Expected(3)) == "shape (3, ...)"


def test_ids_need_a_bucket_more_than_a_power_of_two() -> None:
    for kind in ("string", "int64"):
        assert ID_ARRAYS[kind](100)["buckets"].rows == 17
