"""Encoders of numbers, booleans, vectors and dates, fitted to the training rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from khop.data.tables.packages import (
    TableFault,
    converted,
    is_text,
    numpy_of,
    pa,
    pc,
    refuse,
    shown,
    without_blanks,
)
from khop.data.tables.times import PER_SECOND, TimeFormat, finest, may_have_fractions, to_unit, unit_of
from khop.kernels.moments import Moments

Floats = npt.NDArray[np.float32]
Where = Callable[[int], str]  # describes the place of a row


@dataclass(frozen=True, eq=False)
class Encoded:
    """Numbers of some rows."""

    values: npt.NDArray[Any]  # float32 (rows, width); for words int32 (rows, 2, longest)
    unknown: int = 0  # rows with a category or word that is not in training rows


class ColumnEncoder(Protocol):
    """A column's encoding with its statistics. Implementers are frozen values; threads may share them."""

    @property
    def width(self) -> int:
        """Numbers per row."""
        ...

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode a pyarrow array; ValueError names the place of a row that cannot be encoded."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values, from which the encoder can be restored."""
        ...


class StoredFields:
    """A dataclass whose state is its fields."""

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # a dataclass

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore the value of a state."""
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in state.items()})


@dataclass(frozen=True)
class NumberEncoder(StoredFields):
    """Standardized numbers; nulls as the mean or zero, with an optional column that marks them."""

    key: str
    scale: str
    missing: str
    flag: str
    mean: float = 0.0
    std: float = 1.0

    @property
    def width(self) -> int:
        """Numbers per row."""
        return 2 if self.flag == "missing" else 1

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode numbers; ValueError for a null if those are refused."""
        numbers = scaled(array, self.scale, self.key, where)
        missing = np.isnan(numbers)
        if self.missing == "refuse":
            refuse(missing, where, f'{self.key} is null; give missing = "mean" or "zero"')
        zero = 0.0 if self.scale == "none" or self.missing == "mean" else -self.mean / self.std
        fill = self.mean if self.scale == "none" and self.missing == "mean" else zero
        values = numbers if self.scale == "none" else (numbers - self.mean) / self.std
        columns = [np.where(missing, fill, values), missing][: self.width]
        return Encoded(np.stack([as_float32(one, self.key, where) for one in columns], axis=1))


@dataclass
class NumberFitter:
    """Mean and standard deviation of numbers, exact for any grouping."""

    plain: NumberEncoder  # without statistics
    moments: Moments = field(default_factory=Moments)

    def add(self, array: Any, where: Where) -> None:
        """Add the values of training rows."""
        self.moments = self.moments.merged(Moments.of(scaled(array, self.plain.scale, self.plain.key, where)))

    def encoder(self) -> NumberEncoder:
        """Return the encoder; a constant column has deviation 1."""
        return replace(self.plain, mean=self.moments.mean(), std=self.moments.std() or 1.0)


@dataclass(frozen=True)
class BooleanEncoder(StoredFields):
    """Booleans as 0 and 1, with a second number that is 1 for null."""

    key: str
    true: tuple[str, ...] = ("true", "t", "yes", "1")
    false: tuple[str, ...] = ("false", "f", "no", "0")
    width: int = 2

    def add(self, array: Any, where: Where) -> None:
        """Ignore training rows, as a fitter without statistics."""

    def encoder(self) -> BooleanEncoder:
        """Return the encoder itself."""
        return self

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode booleans, numbers 0 and 1, or words such as yes and no."""
        null = numpy_of(array.is_null())
        if not pa.types.is_boolean(array.type):
            array = self._truths(array, where)
        true = numpy_of(pc.fill_null(array, False))
        return Encoded(np.stack([true, null], axis=1).astype(np.float32))

    def _truths(self, array: Any, where: Where) -> Any:
        reason = 'neither true nor false; give kind = "category", or words, as true = ["Y"] and false = ["N"]'
        words = converted(array, lambda part: part.cast(pa.string()), self.key, where, reason)
        words = pc.replace_substring_regex(pc.utf8_lower(words), r"\.0$", "")
        true, false = (pc.is_in(words, pa.array([*map(str.lower, of)])) for of in (self.true, self.false))
        wrong = numpy_of(pc.and_(words.is_valid(), pc.invert(pc.or_(true, false))))
        refuse(wrong, where, lambda row: f"{self.key} is {shown(array[row])}: {reason}")
        return pc.if_else(words.is_valid(), true, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True)
class VectorEncoder(StoredFields):
    """Lists of numbers of equal length."""

    key: str
    separator: str | None
    missing: str
    width: int

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode lists; ValueError for another length, a null, NaN or infinity."""
        lists = as_lists(array, self.separator, self.key, where)
        null = numpy_of(lists.is_null())
        lengths = numpy_of(pc.fill_null(pc.list_value_length(lists), self.width))
        remedy = f"but the first row has {self.width}; give each row the same number"
        refuse(lengths != self.width, where, lambda row: f"{self.key} has {lengths[row]} numbers, {remedy}")
        if self.missing == "refuse":
            refuse(null, where, f'{self.key} is null; give missing = "zero"')
        values = np.zeros((len(lists), self.width), np.float32)
        flat = numbers_of(pc.list_flatten(lists), self.key, lambda at: where(at // max(1, self.width)))
        with np.errstate(over="ignore"):
            values[~null] = flat.reshape(-1, self.width)
        wrong = np.asarray(~np.isfinite(values).all(axis=1))
        refuse(wrong, where, f"{self.key} has a number that is null, NaN or infinite; correct it")
        return Encoded(values)


def scaled(array: Any, scale: str, key: str, where: Where) -> npt.NDArray[np.float64]:
    """Return numbers on the scale of their statistics; NaN for null. ValueError for infinity."""
    numbers = numbers_of(array, key, where)
    refuse(np.isinf(numbers), where, f"{key} is infinite; correct it", "exclude the row by where")
    return np.sign(numbers) * np.log1p(np.abs(numbers)) if scale == "log" else numbers


def as_float32(numbers: npt.NDArray[Any], key: str, where: Where) -> npt.NDArray[np.float32]:
    """Return numbers (finite or NaN) as float32; ValueError for one beyond its range."""
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float32)
    problem = "beyond float32; correct it, or scale it"
    refuse(np.isinf(stored), where, lambda row: f"{key} is {numbers[row]}: {problem}")
    return stored


def numbers_of(array: Any, key: str, where: Where) -> npt.NDArray[np.float64]:
    """Return a column as float64, NaN for null; ValueError for text that is not a number."""

    def as_numbers(part: Any) -> Any:
        return without_blanks(part).cast(pa.float64(), safe=False)

    cast = converted(array, as_numbers, key, where, "not a number; correct it", "give another kind")
    return np.array(numpy_of(cast), np.float64)


def as_lists(array: Any, separator: str | None, key: str, where: Where) -> Any:
    """Return a column of lists; text is split. An empty text, or only a separator, is an empty list."""
    if is_text(array.type):
        if separator is None:
            raise TableFault(
                f"{key}: is text",
                "give a column of lists, as Parquet has",
                'give the separator of its parts, as separator = "|"',
            )
        empty = pc.or_(pc.equal(pc.utf8_length(array), 0), pc.equal(array, separator))
        parts = pc.split_pattern(array, pattern=separator)
        return pc.if_else(empty, pa.scalar([], parts.type), parts) if pc.any(empty).as_py() else parts
    if pa.types.is_fixed_size_list(array.type):
        return array.cast(pa.list_(array.type.value_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return array
    raise TableFault(f"{key}: is {array.type}", "give a column of lists", "give text with a separator")


Counts = npt.NDArray[np.int64]
_DAY = 86_400
_LINES = ("age", "year")  # standardized; others are cycles


@dataclass(frozen=True)
class DateEncoder(StoredFields):
    """Parts of times in UTC; nulls give zeros."""

    key: str
    parts: tuple[str, ...]
    unit: str | None
    timezone: str | None
    format: str | None
    missing: str
    means: tuple[float, ...] = ()  # of age and year, if they are parts
    stds: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Numbers per row."""
        return sum(1 if part in _LINES else 2 for part in self.parts)

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode times."""
        seconds, null = _seconds(array, self, where)
        if self.missing == "refuse":
            refuse(null, where, f'{self.key} is null; give missing = "zero"')
        columns: list[npt.NDArray[np.float64]] = []
        statistics = iter(zip(self.means, self.stds, strict=True))
        for part in self.parts:
            if part in _LINES:
                mean, std = next(statistics)
                columns.append((_part(part, seconds) - mean) / std)
            else:
                angle = _part(part, seconds) * (2 * np.pi)
                columns += [np.sin(angle), np.cos(angle)]
        values = np.stack(columns, axis=1).astype(np.float32)
        values[null] = 0
        return Encoded(values)


@dataclass
class DateFitter:
    """Means and deviations of age and year."""

    plain: DateEncoder  # without statistics
    moments: dict[str, Moments] = field(default_factory=dict)

    def add(self, array: Any, where: Where) -> None:
        """Add the times of training rows."""
        seconds, null = _seconds(array, self.plain, where)
        for part in self.plain.parts:
            if part in _LINES:
                before = self.moments.get(part, Moments())
                self.moments[part] = before.merged(Moments.of(_part(part, seconds[~null])))

    def encoder(self) -> DateEncoder:
        """Return the encoder."""
        found = [self.moments.get(part, Moments()) for part in self.plain.parts if part in _LINES]
        means, stds = [one.mean() for one in found], [one.std() or 1.0 for one in found]
        return replace(self.plain, means=tuple(means), stds=tuple(stds))


def _seconds(array: Any, given: DateEncoder, where: Where) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """Return seconds since 1970, 0 for nulls, and a mask of the nulls."""
    null: npt.NDArray[np.bool_] = numpy_of(array.is_null())
    seconds = np.zeros(len(array), np.int64)
    at = np.flatnonzero(~null)
    if len(at):
        settings = TimeFormat(given.unit, given.timezone, given.format)  # type: ignore[arg-type]
        own = unit_of(array.type, settings, given.key)
        own = finest([own, "us"]) if may_have_fractions(array.type, settings) else own
        times = to_unit(
            array.filter(pa.array(~null)), settings, own, given.key, lambda row: where(int(at[row]))
        )
        seconds[at] = times // PER_SECOND[own]
    return seconds, null


def _part(part: str, seconds: Counts) -> npt.NDArray[np.float64]:
    """Return the age in days, the year, or a position in a cycle from 0 to 1."""
    days = seconds.astype("datetime64[s]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    found: npt.NDArray[Any]
    match part:
        case "age":
            found = seconds / _DAY
        case "year":
            found = months.astype("datetime64[Y]").astype(np.int64) + 1970.0
        case "month":
            found = months.astype(np.int64) % 12 / 12
        case "day":
            found = (days - months).astype(np.int64) / 31
        case "weekday":
            found = (seconds // _DAY + 3) % 7 / 7  # 1970 began on a Thursday
        case _:
            found = seconds % _DAY / _DAY
    return np.asarray(found, np.float64)
