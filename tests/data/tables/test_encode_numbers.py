""""""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.data.tables.encoders import (
    BooleanEncoder,
    DateEncoder,
    DateFitter,
    NumberEncoder,
    NumberFitter,
    VectorEncoder,
    numbers_of,
)


def where(row: int) -> str:
    return f"row {row + 1}"


def fitter(*parts: str, missing: str = "zero", timezone: str | None = "UTC") -> DateFitter:
    return DateFitter(DateEncoder("signup", parts, None, timezone, None, missing))


def test_age_and_year_are_standardized() -> None:
    days = pa.array([date(2020, 1, 1), date(2020, 1, 3), None])
    one = fitter("age", "year")
    one.add(days, where)
    assert one.encoder().encode(days, where).values.tolist() == [[-1, 0], [1, 0], [0, 0]]


def test_the_others_are_places_on_cycles() -> None:
    times = pa.array([datetime(1970, 1, 5, 6, tzinfo=UTC), datetime(2021, 4, 1, tzinfo=UTC)])
    encoder = fitter("month", "weekday", "hour", "day").encoder()
    values = encoder.encode(times, where).values
    assert encoder.width == 8
    np.testing.assert_allclose(values[0, :6], [0, 1, 0, 1, 1, 0], atol=1e-6)  # January, Monday, 6 o'clock
    np.testing.assert_allclose(values[1, :2], [1, 0], atol=1e-6)  # April
    np.testing.assert_allclose(values[1, 6:], [0, 1], atol=1e-6)  # the first of the month


def test_local_times_are_taken_as_utc_and_a_note_says_so() -> None:
    with pytest.warns(UserWarning, match="signup: times without a zone are taken as UTC"):
        fitter("age", timezone=None).add(pa.array([date(2020, 1, 1)]), where)


def encode_number_where(row: int) -> str:
    return f"a.csv, row {row + 1}"


def fitted(values: list[float | None], **settings: str) -> NumberFitter:
    options = {"scale": "standard", "missing": "mean", "flag": "none", **settings}
    fitter = NumberFitter(NumberEncoder("price", **options))
    fitter.add(pa.array(values, pa.float64()), encode_number_where)
    return fitter


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(0, 20))
def test_standardized_in_any_grouping(values: list[float], cut: int) -> None:
    encoder = fitted(list(values)).encoder()
    parts = fitted(list(values[:cut]))
    parts.add(pa.array(values[cut:], pa.float64()), encode_number_where)
    assert parts.encoder() == encoder
    numbers = np.array(values)
    np.testing.assert_allclose(encoder.mean, numbers.mean(), rtol=1e-9, atol=1e-9)
    expected = (numbers - encoder.mean) / encoder.std
    np.testing.assert_allclose(
        encoder.encode(pa.array(values), encode_number_where).values[:, 0], expected.astype(np.float32)
    )


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({}, [0.0]),
        ({"missing": "zero"}, [-2.0]),
        ({"flag": "missing"}, [0.0, 1.0]),
        ({"scale": "none"}, [2.0]),
        ({"scale": "none", "missing": "zero"}, [0.0]),
    ],
)
def test_nulls_follow_the_policy(settings: dict[str, str], row: list[float]) -> None:
    encoder = fitted([1.0, 3.0, None], **settings).encoder()
    assert encoder.encode(pa.array([None], pa.float64()), encode_number_where).values.tolist() == [row]
    assert encoder.width == len(row)


def test_logarithms_keep_the_sign_and_constants_have_deviation_one() -> None:
    encoder = fitted([0.0, 0.0], scale="log").encoder()
    values = encoder.encode(pa.array([np.e - 1, 1 - np.e]), encode_number_where).values
    np.testing.assert_allclose(values[:, 0], [1, -1], rtol=1e-6)


def test_a_number_beyond_float32_is_named_as_it_is_given() -> None:
    encoder = fitted([0.0, 1.0]).encoder()
    with pytest.raises(ValueError, match="row 2: price is 1e40: beyond float32"):
        encoder.encode(pa.array(["1", "1e40"]), encode_number_where)


def test_text_of_numbers_is_read() -> None:
    assert numbers_of(pa.array(["1.5", " 2 ", "-3e2"]), "price", encode_number_where).tolist() == [
        1.5,
        2,
        -300,
    ]


def test_booleans_of_all_types() -> None:
    for array in (pa.array([True, False, None]), pa.array([1, 0, None]), pa.array(["yes", "No", None])):
        assert BooleanEncoder("new").encode(array, encode_number_where).values.tolist() == [
            [1, 0],
            [0, 0],
            [0, 1],
        ]


def test_vectors_have_one_length() -> None:
    encoder = VectorEncoder("v", None, "zero", 2)
    lists = pa.array([[1.0, 2.0], None, [3.0, 4.0]])
    assert encoder.encode(lists, encode_number_where).values.tolist() == [[1, 2], [0, 0], [3, 4]]
    text = VectorEncoder("v", " ", "refuse", 2)
    assert text.encode(pa.array(["1 2", "3 4"]), encode_number_where).values.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="row 2: v has a number that is null, NaN or infinite"):
        encoder.encode(pa.array([[1.0, 2.0], [3.0, float("nan")]]), encode_number_where)
