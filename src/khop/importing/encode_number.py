"""Numbers, standardized by mean and deviation of the training rows; booleans and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import converted, numpy_of
from khop.importing.encoder import Encoded, Where
from khop.importing.packages import pa, pc
from khop.kernels.moments import Moments


@dataclass(frozen=True)
class NumberEncoder:
    """Standardized numbers; nulls as the mean or zero, with an optional column that marks them."""

    key: str
    scale: str
    missing: str
    flag: str
    mean: float
    std: float

    @property
    def width(self) -> int:
        """Numbers per row."""
        return 2 if self.flag == "missing" else 1

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode numbers; ValueError for a null if those are refused."""
        numbers = scaled(array, self.scale, self.key, where)
        missing = np.isnan(numbers)
        if self.missing == "refuse" and missing.any():
            row = int(np.argmax(missing))
            raise ValueError(f'{where(row)}: {self.key} is null; give missing = "mean" or "zero"')
        zero = 0.0 if self.scale == "none" or self.missing == "mean" else -self.mean / self.std
        fill = self.mean if self.scale == "none" and self.missing == "mean" else zero
        values = numbers if self.scale == "none" else (numbers - self.mean) / self.std
        columns = [np.where(missing, fill, values), missing][: self.width]
        return Encoded(np.stack([as_float32(one, self.key, where) for one in columns], axis=1))

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values."""
        return asdict(self)


@dataclass
class NumberFitter:
    """Mean and deviation of numbers, exact in any grouping."""

    key: str
    scale: str
    missing: str
    flag: str
    moments: Moments = field(default_factory=Moments)

    def add(self, array: Any, where: Where) -> None:
        """Add the values of training rows."""
        self.moments = self.moments.merged(Moments.of(scaled(array, self.scale, self.key, where)))

    def encoder(self) -> NumberEncoder:
        """Return the encoder; a constant column has deviation 1."""
        mean, std = self.moments.mean(), self.moments.std()
        return NumberEncoder(self.key, self.scale, self.missing, self.flag, mean, std or 1.0)


@dataclass(frozen=True)
class BooleanEncoder:
    """1 for true, and a second number that is 1 for null."""

    key: str
    true: tuple[str, ...] = ("true", "t", "yes", "1")
    false: tuple[str, ...] = ("false", "f", "no", "0")
    width: int = 2

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode booleans, numbers 0 and 1, or words such as yes and no."""
        null = numpy_of(array.is_null())
        if not pa.types.is_boolean(array.type):
            array = self._truths(array, where)
        true = numpy_of(pc.fill_null(array, False))
        return Encoded(np.stack([true, null], axis=1).astype(np.float32))

    def _truths(self, array: Any, where: Where) -> Any:
        words = dict.fromkeys(map(str.lower, self.false), False) | dict.fromkeys(
            map(str.lower, self.true), True
        )
        found: list[bool | None] = []
        for row, value in enumerate(array.to_pylist()):
            word = None if value is None else str(value).lower().removesuffix(".0")
            if word is not None and word not in words:
                raise ValueError(
                    f"{where(row)}: {self.key} is {value!r}: neither true nor false; "
                    'give kind = "category", or words, as true = ["Y"] and false = ["N"]'
                )
            found.append(None if word is None else words[word])
        return pa.array(found, pa.bool_())

    def state(self) -> Mapping[str, Any]:
        """Return settings as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class VectorEncoder:
    """Lists of numbers of one length."""

    key: str
    separator: str | None
    missing: str
    width: int

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode lists; ValueError for another length, a null, NaN or infinity."""
        lists = as_lists(array, self.separator, self.key, where)
        null = numpy_of(lists.is_null())
        lengths = numpy_of(pc.fill_null(pc.list_value_length(lists), self.width))
        if (lengths != self.width).any():
            row = int(np.argmax(lengths != self.width))
            raise ValueError(
                f"{where(row)}: {self.key} has {lengths[row]} numbers, and the first row {self.width}; give "
                "each row the same number"
            )
        if self.missing == "refuse" and null.any():
            row = int(np.argmax(null))
            raise ValueError(f'{where(row)}: {self.key} is null; give missing = "zero"')
        values = np.zeros((len(lists), self.width), np.float32)
        flat = numbers_of(pc.list_flatten(lists), self.key, lambda at: where(at // max(1, self.width)))
        with np.errstate(over="ignore"):
            values[~null] = flat.reshape(-1, self.width)
        if not np.isfinite(values).all():
            row = int(np.argmax(~np.isfinite(values).all(axis=1)))
            raise ValueError(
                f"{where(row)}: {self.key} has a number that is null, NaN or infinite; correct it"
            )
        return Encoded(values)

    def state(self) -> Mapping[str, Any]:
        """Return settings as JSON values."""
        return asdict(self)


def scaled(array: Any, scale: str, key: str, where: Where) -> npt.NDArray[np.float64]:
    """Return numbers on the scale of their statistics; NaN for null. ValueError for infinity."""
    numbers = numbers_of(array, key, where)
    if np.isinf(numbers).any():
        row = int(np.argmax(np.isinf(numbers)))
        raise ValueError(f"{where(row)}: {key} is infinite; correct it, or leave the row out by where")
    return np.sign(numbers) * np.log1p(np.abs(numbers)) if scale == "log" else numbers


def as_float32(numbers: npt.NDArray[Any], key: str, where: Where) -> npt.NDArray[np.float32]:
    """Return finite numbers, or NaN, in the precision of features; ValueError for one beyond its range."""
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float32)
    if np.isinf(stored).any():
        row = int(np.argmax(np.isinf(stored)))
        raise ValueError(f"{where(row)}: {key} is {numbers[row]}: beyond float32; correct it, or scale it")
    return stored


def numbers_of(array: Any, key: str, where: Where) -> npt.NDArray[np.float64]:
    """Return a column as float64, NaN for null; ValueError for text that is no number."""

    def as_numbers(part: Any) -> Any:
        return (pc.utf8_trim_whitespace(part) if is_text(part.type) else part).cast(pa.float64(), safe=False)

    cast = converted(array, as_numbers, key, where, "no number; correct it, or give another kind")
    return np.array(numpy_of(cast), np.float64)


def as_lists(array: Any, separator: str | None, key: str, where: Where) -> Any:
    """Return a column of lists; text is split. An empty text, and a separator alone, are an empty list."""
    if is_text(array.type):
        if separator is None:
            raise ValueError(f'{key}: is text; give the separator of its parts, as separator = "|"')
        empty = pc.or_(pc.equal(pc.utf8_length(array), 0), pc.equal(array, separator))
        parts = pc.split_pattern(array, pattern=separator)
        return pc.if_else(empty, pa.scalar([], parts.type), parts) if pc.any(empty).as_py() else parts
    if pa.types.is_fixed_size_list(array.type):
        return array.cast(pa.list_(array.type.value_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return array
    raise ValueError(f"{key}: is {array.type}; give a list column, or text with a separator")


def is_text(dtype: Any) -> bool:
    """Return True for the types of strings."""
    return any(
        kind(dtype) for kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )
