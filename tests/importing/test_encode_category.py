from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.importing.encode_category import CategoryFitter, texts_of


def where(row: int) -> str:
    return f"row {row + 1}"


def fitter(
    limit: int = 10, min_count: int = 1, several: str = "none", separator: str | None = None
) -> CategoryFitter:
    return CategoryFitter("brand", several, separator, limit, min_count)


def test_the_most_frequent_come_first_and_ties_by_appearance() -> None:
    one = fitter(limit=2)
    one.add(pa.array(["b", "a", None, "c", "a"]), where)
    assert one.encoder().categories == ("a", "b")


@given(st.lists(st.sampled_from("abcd")), st.integers(0, 10))
def test_grouping_changes_nothing(values: list[str], cut: int) -> None:
    whole, parts = fitter(), fitter()
    whole.add(pa.array(values, pa.string()), where)
    for part in (values[:cut], values[cut:]):
        parts.add(pa.array(part, pa.string()), where)
    assert whole.encoder() == parts.encoder()


def test_more_values_than_memory_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.importing.encode_category._MOST_DISTINCT", 3)
    one = fitter(limit=2)
    one.add(pa.array(["a", "b", "c", "a"]), where)
    with pytest.raises(ValueError, match='brand: training rows have more than 3 different .* kind = "text"'):
        one.add(pa.array(["d"]), where)


def test_other_categories_and_nulls_have_numbers_of_their_own() -> None:
    one = fitter(min_count=2)
    one.add(pa.array(["a", "a", "b"]), where)
    encoded = one.encoder().encode(pa.array(["a", "b", "new", None]), where)
    assert encoded.values.tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert encoded.unknown == 2


def test_several_categories_per_row() -> None:
    for array, separator in ((pa.array([["a", "b"], [], None]), None), (pa.array(["a| b", "", None]), "|")):
        one = fitter(several="lists", separator=separator)
        one.add(array, where)
        encoder = one.encoder()
        assert encoder.categories == ("a", "b")
        assert encoder.encode(array, where).values.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(ValueError, match="brand: is text; give the separator"):
        fitter(several="lists").add(pa.array(["a"]), where)


def test_numbers_and_dictionaries_are_text() -> None:
    assert texts_of(pa.array([3, None]), "key", str).to_pylist() == ["3", None]
    assert texts_of(pa.array(["a", "b"]).dictionary_encode(), "key", str).to_pylist() == ["a", "b"]
    with pytest.raises(ValueError, match=r"row 0: key is '\[1\]': no text or number; convert the column"):
        texts_of(pa.array([[1]]), "key", lambda row: f"row {row}")
