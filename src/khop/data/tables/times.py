"""Times of tables as integers in one unit.

A time that cannot be converted exactly is an error with its row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.data.tables.packages import connected, converted, is_text, numpy_of, pa, pc, refuse, refuse_null
from khop.data.tables.spec import Unit

UNITS: tuple[Unit, ...] = ("s", "ms", "us", "ns")  # from coarse to fine
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_TEXT_UNIT: Unit = "us"  # of times in text
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Where = Callable[[int], str]  # describes the place of a row
ZONE = r"^.{10}.*(Z|[+-]\d\d(:?\d\d)?)$"


@dataclass(frozen=True)
class TimeFormat:
    """Settings of a column of times."""

    unit: Unit | None = None  # of integers
    timezone: str | None = None  # of times without one
    format: str | None = None  # of text


def unit_of(dtype: Any, given: TimeFormat, key: str) -> Unit:
    """Return the unit of a column's times; ValueError for types without times."""
    if pa.types.is_timestamp(dtype):
        if given.unit is not None and given.unit != dtype.unit:
            raise ValueError(
                f"{key}: unit is {given.unit!r}, but the column has the unit {dtype.unit!r}; remove unit"
            )
        unit: Unit = dtype.unit
        return unit
    if pa.types.is_date(dtype):
        return "s"
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        if given.unit is None:
            raise ValueError(f'{key}: times are numbers without a unit; give unit = "s", "ms", "us" or "ns"')
        return given.unit
    if is_text(dtype):
        return given.unit or _TEXT_UNIT
    raise ValueError(f"{key}: is {dtype}, which is not a time; give a column of timestamps, integers or text")


def epoch_unit(low: float, high: float) -> Unit | None:
    """Return the unit of epoch times by their range, 1973 to 2100."""
    ends = np.array([low, high])
    return next((unit for unit in UNITS if are_epoch_times(ends, unit).all()), None)


def are_epoch_times(values: npt.NDArray[Any], unit: Unit) -> npt.NDArray[np.bool_]:
    """Return True for each number that is a time from 1973 to 2099 in a unit; it is one in this unit only."""
    second = PER_SECOND[unit]
    return (values >= 1e8 * second) & (values <= 4.1e9 * second)


def found_unit(array: Any) -> Unit | None:
    """Return the unit of a column of numeric times, also in text; None if it is unclear from their range."""
    if is_text(array.type):
        array = array.drop_null()
        is_number = numpy_of(pc.match_substring_regex(array, r"^\d{9,19}(\.\d+)?$"))
        if not len(array) or not is_number.all():
            return None
        array = array.cast(pa.float64())
    elif not pa.types.is_integer(array.type) and not pa.types.is_floating(array.type):
        return None
    numbers = numpy_of(array.drop_null().cast(pa.float64(), safe=False))
    return epoch_unit(float(numbers.min()), float(numbers.max())) if len(numbers) else None


def finest(units: list[Unit]) -> Unit:
    """Return the unit that holds times of all units without loss."""
    return max(units, key=UNITS.index, default="s")


def to_unit(array: Any, given: TimeFormat, unit: Unit, key: str, where: Where) -> npt.NDArray[np.int64]:
    """Return times as int64 counts of `unit` since 1970 in UTC.

    ValueError with the row for a null, a fraction of the unit, a time beyond int64, and a local time that
    exists twice or never.
    """
    refuse_null(array, where, f"{key} is null; give each row a time", "exclude null times by where")
    own = unit_of(array.type, given, key)
    if may_have_fractions(array.type, given):
        own = finest([own, unit])
    values = _counts(array, own, given, key, where)
    return _converted(values, own, unit, key, where)


def may_have_fractions(dtype: Any, given: TimeFormat) -> bool:
    """Return True for numbers such as 1546300800.25, which are read in any finer unit."""
    return given.unit is not None and (is_text(dtype) or pa.types.is_floating(dtype))


def instant(value: datetime | int, unit: Unit, key: str) -> int:
    """Convert a time of the spec to a unit."""
    if isinstance(value, int):
        return value
    microseconds = (value - _EPOCH) // timedelta(microseconds=1)
    count, rest = divmod(microseconds * PER_SECOND[unit], PER_SECOND["us"])
    if rest:
        raise ValueError(f"{key}: {value.isoformat()} is not a whole number of {unit}; round it")
    return count


def _counts(array: Any, own: Unit, given: TimeFormat, key: str, where: Where) -> npt.NDArray[np.int64]:
    if pa.types.is_floating(array.type):
        numbers: npt.NDArray[np.float64] = numpy_of(array.cast(pa.float64()))
        factor = PER_SECOND[own] // PER_SECOND[given.unit or own]
        numbers = np.rint(numbers * factor) if factor > 1 else numbers
        bad = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) >= 2.0**53)
        problem, of_spec = "not an exact integer", 'give time_unit = "us" for fractions of seconds'
        refuse(bad, where, lambda row: f"{key} is {numbers[row]!r}: {problem}; convert to integers", of_spec)
        return numbers.astype(np.int64)
    if pa.types.is_integer(array.type):
        return numpy_of(_cast(array, pa.int64(), key, where))
    if is_text(array.type):
        return _text_counts(array, own, given, key, where)
    if pa.types.is_date(array.type):
        array = _cast(array, pa.timestamp("s"), key, where)
    if array.type.tz is None:
        array = _localized(array, given, key, where)
    counts = numpy_of(array.cast(pa.int64()))
    refuse(np.abs(counts) == np.iinfo(np.int64).max, where, f"{key} is infinite; correct the row")
    return counts


def _text_counts(array: Any, unit: Unit, given: TimeFormat, key: str, where: Where) -> npt.NDArray[np.int64]:
    """Return the times of text. Each row is read independently of the grouping of rows."""
    counts, rest = np.zeros(len(array), np.int64), np.ones(len(array), bool)

    def read(
        chosen: npt.NDArray[np.bool_], convert: Callable[[Any], Any], problem: str, of_spec: str = ""
    ) -> None:
        """Read the chosen rows that were not read before."""
        chosen = rest & chosen
        rest[chosen] = False
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return

        def place(row: int) -> str:
            return where(int(rows[row]))

        part = array.filter(pa.array(chosen)) if len(rows) < len(array) else array
        found = converted(part, convert, key, place, problem, of_spec)
        if pa.types.is_timestamp(found.type) and found.type.tz is None:
            found = _localized(found, given, key, place)
        counts[rows] = numpy_of(found.cast(pa.int64()))

    if given.format is not None:
        problem = f"does not have the format {given.format!r}; correct the row"
        read(rest, partial(_parsed, given.format, unit), problem)
        return counts
    if given.unit is not None:
        numbers = partial(_numbers, factor=PER_SECOND[unit] // PER_SECOND[given.unit])
        problem = f"not a whole number of {unit} within int64; correct the row"
        read(_matching(array, r"^-?\d+(\.\d+)?$"), numbers, problem, 'give time_unit = "us"')
    problem, of_spec = "not an ISO 8601 time; correct the row", "give format, or unit for numbers"
    read(_has_zone(array), lambda part: part.cast(pa.timestamp(unit, "UTC")), problem, of_spec)
    read(rest, lambda part: part.cast(pa.timestamp(unit)), problem, of_spec)
    return counts


def _parsed(format: str, unit: Unit, array: Any) -> Any:
    """Return the times of text; DuckDB reads fractions of seconds, %f, which Arrow does not."""
    if "%f" not in format:
        return pc.strptime(array, format=format, unit=unit)
    with connected(threads=1) as connection:
        connection.register("times", pa.table({"t": array}))
        query = f"SELECT strptime(t, '{format.replace(chr(39), 2 * chr(39))}') FROM times"
        found = connection.sql(query).to_arrow_table().column(0).combine_chunks()
        return found.cast(pa.timestamp(unit, found.type.tz))


def _numbers(array: Any, factor: int) -> Any:
    """Return numbers of text times a factor, as integers."""
    if not pc.any(pc.match_substring(array, ".")).as_py():
        return pc.multiply_checked(array.cast(pa.int64()), factor)
    scaled = pc.multiply(array.cast(pa.decimal128(27, 9)), pa.scalar(factor, pa.decimal128(10, 0)))
    return scaled.cast(pa.int64())


def _has_zone(array: Any) -> npt.NDArray[np.bool_]:
    """Return the rows that end with a zone; most tables have "Z" in all rows, which is found faster."""
    found: npt.NDArray[np.bool_] = numpy_of(pc.ends_with(array, "Z"))
    return found if found.all() else _matching(array, ZONE)


def _matching(array: Any, pattern: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = numpy_of(pc.match_substring_regex(array, pattern))
    return found


def _localized(array: Any, given: TimeFormat, key: str, where: Where) -> Any:
    zone = given.timezone or "UTC"
    if given.timezone is None:
        warnings.warn(
            f'{key}: times without a zone are taken as UTC; give timezone = "UTC", or the right zone',
            stacklevel=1,
        )
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), zone)
    except pa.ArrowInvalid:
        raise ValueError(f'{key}: timezone is {zone!r}, which does not exist; give one as "UTC"') from None
    localized = partial(pc.assume_timezone, timezone=zone, ambiguous="raise", nonexistent="raise")
    problem = f"exists twice or never in {zone} (a clock change); correct the row"
    return converted(array, localized, key, where, problem)


def _cast(array: Any, kind: Any, key: str, where: Where) -> Any:
    return converted(array, lambda part: part.cast(kind), key, where, f"not within {kind}; correct the row")


def _converted(
    values: npt.NDArray[np.int64], own: Unit, unit: Unit, key: str, where: Where
) -> npt.NDArray[np.int64]:
    def refuse_where(wrong: npt.NDArray[np.bool_], problem: str, of_spec: str) -> None:
        refuse(wrong, where, lambda row: f"{key} is {values[row]} {own}: {problem}", of_spec)

    if PER_SECOND[own] > PER_SECOND[unit]:
        counts, rest = np.divmod(values, PER_SECOND[own] // PER_SECOND[unit])
        refuse_where(rest != 0, f"not a whole number of {unit}; round it", f"give time_unit = {own!r}")
        return counts
    factor = PER_SECOND[unit] // PER_SECOND[own]
    limit = np.iinfo(np.int64).max // factor
    beyond = (values > limit) | (values < -limit)
    refuse_where(beyond, f"beyond int64 in {unit}; correct the row", "give a coarser time_unit")
    return values * factor
