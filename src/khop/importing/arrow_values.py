"""Values of Arrow arrays as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.packages import pa

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


def _stored(array: Any, kind: str) -> npt.NDArray[Any]:
    """Return the numbers of an array as they are stored; those of nulls are any."""
    dtype = np.dtype(f"{kind}{array.type.bit_width // 8}")
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
