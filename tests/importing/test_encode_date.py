from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

from khop.importing.encode_date import DateFitter


def where(row: int) -> str:
    return f"row {row + 1}"


def fitter(*parts: str, missing: str = "zero", timezone: str | None = "UTC") -> DateFitter:
    return DateFitter("signup", parts, None, timezone, None, missing)


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


def test_nulls_and_local_times_are_refused_where_asked() -> None:
    with pytest.raises(ValueError, match="row 1: signup is null"):
        fitter("age", missing="refuse").encoder().encode(pa.array([None], pa.date32()), where)
    with pytest.warns(UserWarning, match="signup: times without a zone are taken as UTC"):
        fitter("age", timezone=None).add(pa.array([date(2020, 1, 1)]), where)
