"""Columns of ids as keys: text or integers, never converted without being asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import converted, numpy_of
from khop.importing.encode_number import is_text
from khop.importing.encoder import Where
from khop.importing.packages import pa, pc
from khop.kernels.id_table import Keys, Kind, StringKeys

_CANONICAL = r"^(0|-?[1-9]\d*)$"  # text of an integer, without signs or zeros that a number would lose


def id_kind(columns: Iterable[tuple[str, Any, bool]], asked: str | None, node_type: str) -> Kind:
    """Return the kind of a node type's ids.

    `columns` are the key of each column in the spec, its type, and True for text without types (CSV).
    """
    kinds: dict[Kind, str] = {}
    untyped = False
    for key, dtype, is_untyped in columns:
        untyped = untyped or is_untyped
        if not is_untyped:
            kinds.setdefault(_kind(dtype, key), key)
    if asked is not None:
        return "string" if asked == "string" else "int64"
    if len(kinds) > 1:
        raise ValueError(
            f"ids of {node_type!r} are integers in {kinds['int64']} and text in {kinds['string']}; convert "
            f'one table, or give id_type = "string" in [nodes.{node_type}]'
        )
    return next(iter(kinds), "string")


def keys_of(array: Any, kind: Kind, key: str, where: Where) -> Keys:
    """Return a column without nulls as keys; ValueError for a null, and for text that is no integer."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if array.null_count:
        row = int(np.argmax(numpy_of(array.is_null())))
        raise ValueError(
            f"{where(row)}: {key} is null; an id is never null, correct the row or leave it out by where"
        )
    if kind == "string":
        reason = "no text or integer; convert the column"
        return string_keys(converted(array, lambda part: part.cast(pa.large_string()), key, where, reason))
    if is_text(array.type):
        canonical = numpy_of(pc.match_substring_regex(array, _CANONICAL))
        if not canonical.all():
            row = int(np.argmin(canonical))
            raise ValueError(
                f"{where(row)}: {key} is {array[row].as_py()!r}, and ids of other tables are integers; write "
                'it as an integer, or import with id_type = "string"'
            )
    reason = 'no integer within int64; correct it, or import with id_type = "string"'
    integers = converted(array, lambda part: part.cast(pa.int64()), key, where, reason)
    return np.ascontiguousarray(numpy_of(integers), np.int64)


def key_texts(array: Any, kind: Kind) -> Any:
    """Return ids as a pyarrow array of text, as hashes and outputs use them."""
    return array.cast(pa.string())


def canonical_integers(array: Any) -> npt.NDArray[np.int64] | None:
    """Return text as int64; None unless each is an integer as Python writes it, so that no id changes."""
    keys = string_keys(array.cast(pa.large_string()))
    if ((keys.data - ord("0") > 9) & (keys.data != ord("-"))).any():
        return None  # first, as a cast that fails is slow
    try:
        integers: npt.NDArray[np.int64] = numpy_of(array.cast(pa.int64()))
    except pa.ArrowInvalid:
        return None
    # Signs and zeros that a number loses make the text longer than the number's digits.
    return integers if length_as_text(integers) == len(keys.data) else None


def length_as_text(integers: npt.NDArray[np.int64]) -> int:
    """Return the number of digits and minus signs of all integers."""
    sizes = np.abs(integers).view(np.uint64)
    length = len(integers) + int(np.count_nonzero(integers < 0))
    limit, most = 10, int(sizes.max(initial=0))
    while limit <= most:
        length += int(np.count_nonzero(sizes >= limit))
        limit *= 10
    return length


def string_keys(array: Any) -> StringKeys:
    """Return a column of type large_string without nulls as keys."""
    _, offsets, data = array.buffers()
    if len(array) == 0:
        return StringKeys(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return StringKeys(starts - starts[0], np.ascontiguousarray(values[starts[0] : starts[-1]]))


def _kind(dtype: Any, key: str) -> Kind:
    if pa.types.is_dictionary(dtype):
        return _kind(dtype.value_type, key)
    if pa.types.is_integer(dtype):
        return "int64"
    if is_text(dtype):
        return "string"
    raise ValueError(f"{key}: ids are {dtype}; convert the column to text or integers")
