from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.data.tables.times import TimeFormat, finest, instant, to_unit, unit_of

SECONDS = 1_600_000_000


def where(row: int) -> str:
    return f"events.csv, row {row + 1}"


def times(array: pa.Array, into: str, **settings: str) -> list[int]:
    return to_unit(array, TimeFormat(**settings), into, "time", where).tolist()  # type: ignore[arg-type]


@given(st.lists(st.integers(-(2**40), 2**40)), st.sampled_from(["s", "ms", "us", "ns"]))
def test_finer_units_lose_nothing(values: list[int], unit: str) -> None:
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [value % (2**33) for value in values]
    found = times(pa.array(values, pa.timestamp("s", "UTC")), unit)
    assert found == [value * factor for value in values]
    back = times(pa.array(found, pa.int64()), "s", unit=unit)
    assert back == values


@pytest.mark.parametrize(
    "array",
    [
        pa.array([SECONDS * 10**6], pa.timestamp("us", "America/New_York")),
        pa.array([SECONDS], pa.timestamp("s")),
        pa.array([SECONDS], pa.int32()),
        pa.array([float(SECONDS)]),
        pa.array(["2020-09-13T12:26:40Z"]),
        pa.array(["2020-09-13T14:26:40+02:00"]),
        pa.array(["2020-09-13 12:26:40"]),
        pa.array([str(SECONDS)]),
    ],
    ids=str,
)
def test_the_same_time_in_all_types(array: pa.Array) -> None:
    settings = {} if pa.types.is_timestamp(array.type) else {"unit": "s"}
    assert times(array, "s", timezone="UTC", **settings) == [SECONDS]


def test_dates_and_formats() -> None:
    assert times(pa.array([date(1970, 1, 3)]), "ms", timezone="UTC") == [2 * 86_400_000]
    assert times(pa.array(["03.01.1970"]), "s", timezone="UTC", format="%d.%m.%Y") == [2 * 86400]
    assert times(pa.array([datetime(2020, 7, 1, 12)]), "s", timezone="Europe/Paris") == [1593597600]


@pytest.mark.parametrize(
    ("array", "settings", "reason"),
    [
        (pa.array([1]), {}, "numbers without a unit; give unit"),
        (pa.array([1], pa.timestamp("ms", "UTC")), {"unit": "s"}, "unit is 's', .* has the unit 'ms'"),
        (pa.array([True]), {}, "is bool, which is not a time"),
        (pa.array([0, 1500]), {"unit": "ms"}, "row 2: time is 1500 ms: .* give time_unit = 'ms'"),
        (pa.array([0.5]), {"unit": "s"}, r"row 1: time is .*0.5.*: not an exact integer"),
        (
            pa.array([datetime(2020, 10, 25, 1), datetime(2020, 10, 25, 2, 30)]),
            {"timezone": "Europe/Paris"},
            "row 2: time is '2020-10-25 02:30:00.*exists twice or never in Europe/Paris",
        ),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused_with_the_row(
    array: pa.Array, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        times(array, "s", **settings)


@pytest.mark.parametrize("value", [2**63 // 10**9 + 1, -(2**62)])
def test_dates_beyond_int64_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"row 1: time is {value} s: beyond int64 in ns"):
        times(pa.array([value], pa.timestamp("s", "UTC")), "ns")
    assert times(pa.array([2**63 // 10**9], pa.timestamp("s", "UTC")), "ns") == [2**63 // 10**9 * 10**9]


def test_the_unit_of_a_graph_is_the_finest() -> None:
    assert finest(["s", "us", "ms"]) == "us"
    assert unit_of(pa.string(), TimeFormat(), "time") == "us"


def test_a_cut_off_is_a_whole_number_of_units() -> None:
    assert instant(datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC), "ms", "splits.time.val") == SECONDS * 1000
    assert instant(7, "ms", "splits.time.val") == 7
    with pytest.raises(ValueError, match=r"splits.time.val: .* is not a whole number of s"):
        instant(datetime(2020, 1, 1, microsecond=1, tzinfo=UTC), "s", "splits.time.val")


def test_text_keeps_microseconds() -> None:
    found = to_unit(pa.array(["2020-09-13T12:26:40.000001Z"]), TimeFormat(), "us", "time", where)
    assert found.tolist() == [SECONDS * 10**6 + 1]
    assert found.dtype == np.int64


@given(
    st.permutations(["2020-09-13T12:26:40Z", "2020-09-13 14:26:40", str(SECONDS), "2020-09-13T12:26:40+00"])
)
def test_each_row_of_text_is_read_on_its_own(texts: list[str]) -> None:
    """Rows of several forms give the same times in one piece as in pieces of one row."""
    settings = {"unit": "s", "timezone": "Europe/Paris"}
    assert times(pa.array(texts), "s", **settings) == [SECONDS] * 4
    assert [times(pa.array([text]), "s", **settings) for text in texts] == [[SECONDS]] * 4


@pytest.mark.parametrize(
    "array",
    [
        pa.array([datetime(2020, 1, 1)]),
        pa.array([date(2020, 1, 1)]),
        pa.array(["2020-01-01T00:00:00"]),
        pa.array(["2020-01-01T01:00:00+01:00", "2020-01-01 00:00:00"]),
    ],
)
def test_times_without_a_zone_are_taken_as_utc_and_a_note_says_so(array: pa.Array) -> None:
    with pytest.warns(UserWarning, match=r"time: times without a zone are taken as UTC; give timezone = "):
        assert set(times(array, "s")) == {1577836800}
