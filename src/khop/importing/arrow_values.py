"""Values of Arrow arrays: as NumPy arrays, and converted, with the first row that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.packages import PACKAGE_ERRORS, pa

_WIDEST = 100  # characters of a value in an error
_KINDS = ((pa.types.is_floating, "f"), (pa.types.is_signed_integer, "i"), (pa.types.is_unsigned_integer, "u"))


def numpy_of(array: Any) -> npt.NDArray[Any]:
    """Return the values of an array as `Array.to_numpy` does; numbers are shared with it where possible.

    A null of numbers is NaN. Numbers, and booleans without nulls, do not import pandas. `to_numpy` imports it
    where it is installed, in half a second of CPU time.
    """
    if pa.types.is_boolean(array.type) and not array.null_count:
        return numpy_of(array.cast(pa.uint8())).view(np.bool_)
    kind = next((kind for is_kind, kind in _KINDS if is_kind(array.type)), "")
    if not kind:
        values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values
    if not array.null_count:
        return _stored(array, kind)
    values = _stored(array if kind == "f" else array.cast(pa.float64(), safe=False), "f").copy()
    values[numpy_of(array.is_null())] = np.nan
    return values


def converted(
    array: Any, convert: Callable[[Any], Any], key: str, where: Callable[[int], str], reason: str
) -> Any:
    """Return `convert(array)`; ValueError with the first row that cannot be converted, and its value.

    Args:
        array: A column of some rows.
        convert: A function of each row alone, which may raise errors of Arrow.
        key: The column, for people.
        where: The place of a row in words.
        reason: Why a value cannot be converted, and the remedy.
    """
    try:
        return convert(array)
    except PACKAGE_ERRORS:
        row = first_failing(len(array), lambda first, count: convert(array.slice(first, count)))
    raise ValueError(f"{where(row)}: {key} is {shown(array[row])}: {reason}")


def first_failing(rows: int, run: Callable[[int, int], object]) -> int:
    """Return the first row for which `run(first, count)` raises an error of a package, as it does for all."""
    low, high = 0, rows  # rows before `low` are good, one before `high` is bad
    while high - low > 1:
        middle = (low + high) // 2
        try:
            run(low, middle - low)
            low = middle
        except PACKAGE_ERRORS:
            high = middle
    return low


def shown(scalar: Any) -> str:
    """Return a value for people, no longer than a line."""
    try:
        value = scalar.as_py()
    except UnicodeDecodeError:
        value = scalar.cast(pa.binary()).as_py() if pa.types.is_string(scalar.type) else "..."
    text = repr(value if isinstance(value, str | bytes | int | float | None) else str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _stored(array: Any, kind: str) -> npt.NDArray[Any]:
    """Return the numbers of an array as they are stored; those of nulls are any."""
    dtype = np.dtype(f"{kind}{array.type.bit_width // 8}")
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
