"""Dates as numbers: age and year standardized, months, days and hours as places on cycles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import numpy_of
from khop.importing.encoder import Encoded, Where
from khop.importing.packages import pa
from khop.importing.times import PER_SECOND, TimeFormat, finest, may_have_fractions, to_unit, unit_of
from khop.kernels.moments import Moments

Counts = npt.NDArray[np.int64]
_DAY = 86_400
_LINES = ("age", "year")  # standardized; all others are cycles


@dataclass(frozen=True)
class DateEncoder:
    """Parts of times in UTC; nulls give zeros."""

    key: str
    parts: tuple[str, ...]
    unit: str | None
    timezone: str | None
    format: str | None
    missing: str
    means: tuple[float, ...]  # of age and year, where they are among the parts
    stds: tuple[float, ...]

    @property
    def width(self) -> int:
        """Numbers per row."""
        return sum(1 if part in _LINES else 2 for part in self.parts)

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode times."""
        seconds, null = _seconds(array, self, where)
        if self.missing == "refuse" and null.any():
            raise ValueError(f'{where(int(np.argmax(null)))}: {self.key} is null; give missing = "zero"')
        columns: list[npt.NDArray[np.float64]] = []
        statistics = iter(zip(self.means, self.stds, strict=True))
        for part in self.parts:
            if part in _LINES:
                mean, std = next(statistics)
                columns.append((_LINE[part](seconds) - mean) / std)
            else:
                angle = _CYCLE[part](seconds) * (2 * np.pi)
                columns += [np.sin(angle), np.cos(angle)]
        values = np.stack(columns, axis=1).astype(np.float32)
        values[null] = 0
        return Encoded(values)

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values."""
        return asdict(self)


@dataclass
class DateFitter:
    """Means and deviations of age and year."""

    key: str
    parts: tuple[str, ...]
    unit: str | None
    timezone: str | None
    format: str | None
    missing: str
    moments: dict[str, Moments] = field(default_factory=dict)

    def add(self, array: Any, where: Where) -> None:
        """Add the times of training rows."""
        seconds, null = _seconds(array, self, where)
        for part in self.parts:
            if part in _LINES:
                before = self.moments.get(part, Moments())
                self.moments[part] = before.merged(Moments.of(_LINE[part](seconds[~null])))

    def encoder(self) -> DateEncoder:
        """Return the encoder."""
        found = [self.moments.get(part, Moments()) for part in self.parts if part in _LINES]
        return DateEncoder(
            self.key, self.parts, self.unit, self.timezone, self.format, self.missing,
            tuple(one.mean() for one in found), tuple(one.std() or 1.0 for one in found),
        )  # fmt: skip


def _seconds(
    array: Any, given: DateEncoder | DateFitter, where: Where
) -> tuple[Counts, npt.NDArray[np.bool_]]:
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


def _age(seconds: Counts) -> npt.NDArray[np.float64]:
    return np.asarray(seconds / _DAY, np.float64)


def _year(seconds: Counts) -> npt.NDArray[np.float64]:
    return np.asarray(seconds.astype("datetime64[s]").astype("datetime64[Y]").astype(np.int64) + 1970.0)


def _month(seconds: Counts) -> npt.NDArray[np.float64]:
    return seconds.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) % 12 / 12


def _day_of_month(seconds: Counts) -> npt.NDArray[np.float64]:
    days = seconds.astype("datetime64[s]").astype("datetime64[D]")
    return np.asarray((days - days.astype("datetime64[M]")).astype(np.int64) / 31, np.float64)


def _weekday(seconds: Counts) -> npt.NDArray[np.float64]:
    return (seconds // _DAY + 3) % 7 / 7  # 1970 began on a Thursday


def _hour(seconds: Counts) -> npt.NDArray[np.float64]:
    return seconds % _DAY / _DAY


_Part = Callable[[Counts], npt.NDArray[np.float64]]
_LINE: Mapping[str, _Part] = {"age": _age, "year": _year}
_CYCLE: Mapping[str, _Part] = {"month": _month, "day": _day_of_month, "weekday": _weekday, "hour": _hour}
