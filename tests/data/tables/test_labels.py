""""""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.data.tables.labels import (
    CutOffs,
    LabelReader,
    id_kind,
    keys_of,
    parts_by_column,
    parts_by_hash,
)
from khop.data.tables.spec import Label, Split
from khop.kernels.id_table import StringKeys


def where(row: int) -> str:
    return f"row {row + 1}"


def reader(**settings: Any) -> LabelReader:  # noqa: ANN401
    return LabelReader(Label(column="y", **settings), "nodes.item.label")


def test_classes_are_those_of_training_in_ascending_order() -> None:
    one = reader()
    one.add(pa.array(["b", None, "a"]), where)
    labeled = one.read(pa.array(["a", "b", None, "new"]), where)
    assert one.classes == ("a", "b")
    assert labeled.values.tolist() == [0, 1, -1, -1]
    assert labeled.known.tolist() == [True, True, False, False]
    assert labeled.outside == 1


def test_integers_are_sorted_by_value() -> None:
    one = reader()
    one.add(pa.array([10, 9, 2]), where)
    assert one.classes == ("2", "9", "10")


def test_text_that_looks_like_an_integer_is_text() -> None:
    one, long = reader(), "9" * 5000
    one.add(pa.array(["--5", "-5", "4", long]), where)
    assert one.classes == ("-5", "4", "--5", long)


def test_two_spellings_of_a_number_are_two_classes_with_a_warning() -> None:
    """Text of CSV: pandas writes integers with missing values as 1.0."""
    one = reader()
    one.add(pa.array(["1", "0", "a", "1a"]), where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.warn_of_spellings()
    one.add(pa.array(["1.0"]), where)
    with pytest.warns(UserWarning, match=r"item.label: '1' and '1.0' are one number, but two classes"):
        one.warn_of_spellings()


def test_named_classes_are_all_there_are() -> None:
    one = reader(classes=("no", "yes"))
    assert one.read(pa.array(["yes", "no"]), where).values.tolist() == [1, 0]
    with pytest.raises(ValueError, match="row 2: nodes.item.label is 'yess', .*; did you mean yes"):
        one.read(pa.array(["no", "yess"]), where)


def test_several_classes_null_is_unknown_and_empty_is_none() -> None:
    one = reader(kind="multi", separator="|")
    one.add(pa.array(["a|b"]), where)
    labeled = one.read(pa.array(["b", "", None, "a|new", "|"]), where)
    assert labeled.values.tolist() == [[0, 1], [0, 0], [255, 255], [1, 0], [0, 0]]
    assert labeled.known.tolist() == [True, True, False, True, True]
    assert labeled.outside == 1
    with pytest.raises(ValueError, match="row 1: nodes.item.label is 'c'"):
        reader(kind="multi", classes=("a",)).read(pa.array([["c"]]), where)


@pytest.mark.parametrize("named", [None, ("a", "b")])
def test_blanks_around_a_separator_are_not_part_of_a_class(named: tuple[str, ...] | None) -> None:
    one = reader(kind="multi", separator="|", classes=named)
    texts = pa.array(["a | b", "a|b", " b", "a ", "", " ", " |"])
    one.add(texts, where)
    assert one.classes == ("a", "b")
    values = one.read(texts, where).values
    assert values.tolist() == [[1, 1], [1, 1], [0, 1], [1, 0], [0, 0], [0, 0], [0, 0]]


def test_numbers_are_kept_and_null_is_nan() -> None:
    labeled = reader(kind="number").read(pa.array([1.5, None]), where)
    assert labeled.values[0] == 1.5
    assert np.isnan(labeled.values[1])
    assert labeled.known.tolist() == [True, False]


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
    with pytest.raises(ValueError, match="row 2: id is .*, but ids of other tables are integers"):
        keys_of(pa.array(["1", text]), "int64", "id", where)


def test_the_kind_is_that_of_typed_tables_and_text_for_csv() -> None:
    text, number = ("a", pa.string(), True), ("b", pa.int32(), False)
    assert id_kind([text], None, "user") == "string"
    assert id_kind([text, number], None, "user") == "int64"
    assert id_kind([number], "string", "user") == "string"
    assert id_kind([], None, "user") == "string"
    mixed = [number, ("c", pa.string(), False)]
    with pytest.warns(UserWarning, match=r"ids of 'user' are integers in b and text in c: all are read as"):
        assert id_kind(mixed, None, "user") == "string"
    with pytest.raises(ValueError, match="d: ids are double"):
        id_kind([("d", pa.float64(), False)], None, "user")


def test_training_ends_before_val_and_validation_before_test() -> None:
    assert CutOffs(10, 20).parts(np.array([9, 10, 19, 20])).tolist() == [0, 1, 1, 2]


@given(st.lists(st.text(max_size=8), max_size=20), st.integers(0, 5))
def test_the_hash_is_md5_of_seed_and_id(ids: list[str], seed: int) -> None:
    split = Split(ratio=(0.5, 0.25, 0.25), seed=seed)
    expected = []
    for one in ids:
        digest = hashlib.md5(f"{seed}:{one}".encode()).digest()
        share = int.from_bytes(digest[:8], "little") / 2**64
        expected.append(int(share >= 0.5) + int(share >= 0.75))
    assert parts_by_hash(pa.array(ids, pa.string()), split).tolist() == expected


def test_no_share_of_zero_gets_a_row() -> None:
    ids = pa.array([str(n) for n in range(1000)])
    assert set(parts_by_hash(ids, Split(ratio=(1.0, 0.0, 0.0))).tolist()) == {0}
    assert set(parts_by_hash(ids, Split(ratio=(0.5, 0.5, 0.0))).tolist()) == {0, 1}


def test_a_column_names_the_part() -> None:
    split = Split(column="s", train=0, val="v", test=True)
    assert parts_by_column(pa.array(["0", "v", "true", None]), split, "s", where).tolist() == [
        0,
        1,
        2,
        -1,
    ]
    with pytest.raises(ValueError, match="row 2: s is 'x': must be 0, v, true or null"):
        parts_by_column(pa.array(["0", "x"]), split, "s", where)
