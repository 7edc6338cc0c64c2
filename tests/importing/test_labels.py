from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from khop.importing.labels import LabelReader
from khop.importing.spec import Label


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


def test_numbers_are_kept_and_null_is_nan() -> None:
    labeled = reader(kind="number").read(pa.array([1.5, None]), where)
    assert labeled.values[0] == 1.5
    assert np.isnan(labeled.values[1])
    assert labeled.known.tolist() == [True, False]
