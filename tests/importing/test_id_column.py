from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.importing.id_column import id_kind, key_texts, keys_of
from khop.kernels.id_table import StringKeys


def where(row: int) -> str:
    return f"row {row + 1}"


@given(st.lists(st.text(max_size=5)), st.integers(0, 3), st.integers(0, 5))
def test_text_of_slices_is_kept(values: list[str], start: int, length: int) -> None:
    array = pa.array(values, pa.string()).slice(start, length)
    keys = keys_of(array, "string", "id", where)
    assert isinstance(keys, StringKeys)
    assert keys.strings() == values[start : start + length]


def test_integers_of_all_widths_and_of_text() -> None:
    for array in (pa.array([7, -1], pa.int8()), pa.array([7, -1]), pa.array(["7", "-1"])):
        assert np.array_equal(keys_of(array, "int64", "id", where), [7, -1])  # type: ignore[arg-type]
    assert np.array_equal(keys_of(pa.array([2**63 - 1], pa.uint64()), "int64", "id", where), [2**63 - 1])  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["007", "+7", "7.0", " 7", "", "x"])
def test_text_that_would_lose_something_as_an_integer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="row 2: id is .*, and ids of other tables are integers"):
        keys_of(pa.array(["1", text]), "int64", "id", where)


def test_nulls_and_large_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="row 2: id is null; an id is never null"):
        keys_of(pa.array(["1", None]), "string", "id", where)
    with pytest.raises(ValueError, match="row 1: id is 9223372036854775808: no integer within int64"):
        keys_of(pa.array([2**63], pa.uint64()), "int64", "id", where)


def test_the_kind_is_that_of_typed_tables_and_text_for_csv() -> None:
    text, number = ("a", pa.string(), True), ("b", pa.int32(), False)
    assert id_kind([text], None, "user") == "string"
    assert id_kind([text, number], None, "user") == "int64"
    assert id_kind([number], "string", "user") == "string"
    assert id_kind([], None, "user") == "string"
    with pytest.raises(
        ValueError, match=r"ids of 'user' are integers in b and text in c; .* in \[nodes.user\]"
    ):
        id_kind([number, ("c", pa.string(), False)], None, "user")
    with pytest.raises(ValueError, match="d: ids are double"):
        id_kind([("d", pa.float64(), False)], None, "user")


def test_texts_of_integers() -> None:
    assert key_texts(pa.array([7, 10]), "int64").to_pylist() == ["7", "10"]
