"""Labels, splits and ids of the rows of an import.

Ids are text or integers. Text becomes integers only if the spec asks for it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.data.tables.encoders import Where, as_float32, as_lists, scaled, texts_of
from khop.data.tables.packages import (
    JSON_TEXT,
    connected,
    converted,
    is_text,
    numpy_of,
    pa,
    pc,
    refuse,
    refuse_null,
)
from khop.data.tables.read_spec import nearest
from khop.data.tables.rows import TableRows
from khop.data.tables.spec import Label, Split, Unit
from khop.data.tables.times import instant
from khop.kernels.id_table import Int64s, Keys, Kind, StringKeys

UNKNOWN = -1
Others = Literal["refuse", "unknown"]
_LONG = 1000  # digits: longer numbers are sorted as text
UNKNOWN_BYTE = 255  # in rows of nodes with unknown classes


@dataclass(frozen=True, eq=False)
class Labeled:
    """Labels of some rows."""

    values: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]
    outside: int  # rows with a class that is not in training rows


@dataclass
class LabelReader:
    """A label column. Unless the spec names classes, they are those of training rows, in ascending order."""

    spec: Label
    key: str
    others: Others = "refuse"  # classes that the spec does not name
    _seen: set[str] = field(default_factory=set)

    def add(self, array: Any, where: Where) -> None:
        """Collect the classes of training rows."""
        if self.spec.classes is None and self.spec.kind != "number":
            self._seen.update(self._texts(array, where).drop_null().unique().to_pylist())

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in their order."""
        return self.spec.classes if self.spec.classes is not None else tuple(sorted(self._seen, key=_natural))

    def warn_of_spellings(self) -> None:
        """Warn if two classes are one number, as in CSV files of which one has missing values."""
        first: dict[float, str] = {}
        for name in self.classes if self.spec.classes is None else ():
            is_number = re.fullmatch(r"\s*[+-]?\d{1,15}(\.\d*)?\s*", name)
            if is_number and (other := first.setdefault(float(name), name)) != name:
                sentence = f"{other!r} and {name!r} are one number, but two classes; write it in one form"
                warnings.warn(f"{self.key}: {sentence}", stacklevel=1)
                return

    @property
    def is_closed(self) -> bool:
        """True if a class that the spec does not name is an error."""
        return self.spec.classes is not None and self.others == "refuse"

    def read(self, array: Any, where: Where) -> Labeled:
        """Return the labels of rows: int64, (rows, classes) uint8, or float32 with NaN for unknown."""
        if self.spec.kind == "number":
            numbers = scaled(array, "none", self.key, where)
            return Labeled(as_float32(numbers, self.key, where), ~np.isnan(numbers), 0)
        place = {name: number for number, name in enumerate(self.classes)}
        read = self._class if self.spec.kind == "class" else self._multi
        return read(array, place, where)

    def _class(self, array: Any, place: dict[str, int], where: Where) -> Labeled:
        encoded = self._texts(array, where).dictionary_encode()
        codes = numpy_of(pc.fill_null(encoded.indices, UNKNOWN)).astype(np.int64)
        names = encoded.dictionary.to_pylist()
        places = np.array([place.get(name, UNKNOWN) for name in names] + [UNKNOWN], np.int64)
        values = places[codes]
        outside = (codes != UNKNOWN) & (values == UNKNOWN)
        if self.is_closed:
            refuse(outside, where, lambda row: self._outside(names[codes[row]]))
        return Labeled(values, values != UNKNOWN, int(outside.sum()))

    def _multi(self, array: Any, place: dict[str, int], where: Where) -> Labeled:
        lists = as_lists(array, self.spec.separator, self.key, where)
        known = numpy_of(lists.is_valid())
        values = np.zeros((len(lists), len(place)), np.uint8)
        values[~known] = UNKNOWN_BYTE
        rows = numpy_of(pc.list_parent_indices(lists))
        outside = set()
        for row, name in zip(rows.tolist(), self._texts(array, where).to_pylist(), strict=True):
            if name in place:
                values[row, place[name]] = 1
            elif self.is_closed:
                raise ValueError(f"{where(row)}: {self._outside(name)}")
            else:
                outside.add(row)
        return Labeled(values, known, len(outside))

    def _texts(self, array: Any, where: Where) -> Any:
        if self.spec.kind == "multi":
            lists = as_lists(array, self.spec.separator, self.key, where)
            rows = numpy_of(pc.list_parent_indices(lists))
            texts = texts_of(pc.list_flatten(lists), self.key, lambda at: where(int(rows[at])))
            return texts if self.spec.separator is None else pc.utf8_trim_whitespace(texts)
        return texts_of(array, self.key, where)

    def _outside(self, name: str | None) -> str:
        hint = nearest(str(name), list(self.classes))
        return f"{self.key} is {name!r}, which is not among the classes; {hint}"


def _natural(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts integers by value, before text."""
    is_integer = name.removeprefix("-").isdecimal() and len(name) < _LONG
    return (not is_integer, int(name) if is_integer else 0, name)


NAMES = ("train", "val", "test")
TRAIN, VAL, TEST, NONE = 0, 1, 2, -1
Parts = npt.NDArray[np.int8]
_HASHES = 2.0**64


@dataclass(frozen=True)
class CutOffs:
    """The first times of validation and test, in the unit of the graph."""

    val: int
    test: int

    @classmethod
    def of(cls, split: Split, unit: Unit, key: str) -> CutOffs | None:
        """Return the cut-offs of a split by time; None for other splits."""
        if split.time is None:
            return None
        return cls(instant(split.time.val, unit, f"{key}.val"), instant(split.time.test, unit, f"{key}.test"))

    def parts(self, times: npt.NDArray[np.int64]) -> Parts:
        """Return the part of each time: training < val <= validation < test <= test."""
        parts: Parts = (times >= self.val).astype(np.int8)
        parts += times >= self.test
        return parts


def parts_of(
    split: Split | None, rows: TableRows, ids: Sequence[str], times: Int64s | None, unit: Unit, key: str
) -> Parts | None:
    """Return the part of each row: by the hash of its ids, a column, or its time; None without a split."""
    if split is None:
        return None
    if split.ratio is not None:
        texts = [rows.column(name).cast(pa.string()) for name in ids]
        return parts_by_hash(pc.binary_join_element_wise(*texts, "\x1f"), split)
    if split.column is not None:
        return parts_by_column(rows.column(split.column), split, f"{key}.split.column", rows.row)
    cut_offs = CutOffs.of(split, unit, f"{key}.split.time")
    return None if times is None or cut_offs is None else cut_offs.parts(times)


def parts_by_hash(texts: Any, split: Split) -> Parts:
    """Return the part of each id, by the first 8 bytes (little-endian) of the MD5 of "seed:id"."""
    assert split.ratio is not None
    with connected(threads=1) as connection:
        connection.register("ids", pa.table({"id": texts}))
        query = f"SELECT md5_number_upper('{split.seed}:' || id) FROM ids"
        hashes = connection.sql(query).to_arrow_table().column(0).to_numpy()
    shares = hashes.astype(np.float64) / _HASHES
    val, test = split.ratio[0], split.ratio[0] + split.ratio[1]
    parts: Parts = (shares >= val).astype(np.int8)
    parts += (shares >= test) & (split.ratio[2] > 0)
    return parts


def parts_by_column(array: Any, split: Split, key: str, where: Where) -> Parts:
    """Return the part that each row names; null is in no part."""
    names = {_text(split.train): TRAIN, _text(split.val): VAL, _text(split.test): TEST}
    texts = texts_of(array, key, where)
    found = numpy_of(pc.fill_null(pc.index_in(texts, pa.array(names, pa.string())), -1))
    rule = f"must be {', '.join(names)} or null; name other values by train, val and test"
    wrong = (found < 0) & numpy_of(texts.is_valid())
    refuse(wrong, where, lambda row: f"{key} is {texts[row].as_py()!r}: {rule}")
    parts: Parts = np.array([*names.values(), NONE], np.int8)[found]
    return parts


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_AS_TEXT = 'import with id_type = "string"'
_CANONICAL = r"^(0|-?[1-9]\d*)$"  # text of an integer, without a plus sign or leading zeros


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
        warnings.warn(
            f"ids of {node_type!r} are integers in {kinds['int64']} and text in {kinds['string']}: all are "
            f'read as text; write id_type = "string" in [nodes.{node_type}]',
            stacklevel=1,
        )
        return "string"
    return next(iter(kinds), "string")


def keys_of(array: Any, kind: Kind, key: str, where: Where) -> Keys:
    """Return a column without nulls as keys; ValueError for a null, and for text that is not an integer."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    refuse_null(array, where, f"{key} is null; correct the row", "exclude it by where")
    if kind == "string":
        reason = "neither text nor an integer; convert the column"
        return string_keys(converted(array, lambda part: part.cast(pa.large_string()), key, where, reason))
    if is_text(array.type):
        other = numpy_of(pc.invert(pc.match_substring_regex(array, _CANONICAL)))
        remedy = "ids of other tables are integers; write it as an integer"
        refuse(other, where, lambda row: f"{key} is {array[row].as_py()!r}, but {remedy}", _AS_TEXT)
    reason = "no integer within int64; correct it"
    integers = converted(array, lambda part: part.cast(pa.int64()), key, where, reason, _AS_TEXT)
    return np.ascontiguousarray(numpy_of(integers), np.int64)


def canonical_integers(array: Any) -> npt.NDArray[np.int64] | None:
    """Return text as int64; None unless all are canonical integers, so that ids do not change."""
    keys = string_keys(array.cast(pa.large_string()))
    if ((keys.data - ord("0") > 9) & (keys.data != ord("-"))).any():
        return None  # first, because a failing cast is slow
    try:
        integers: npt.NDArray[np.int64] = numpy_of(array.cast(pa.int64()))
    except pa.ArrowInvalid:
        return None
    # A plus sign or leading zeros make the text longer than the number's digits.
    return integers if length_as_text(integers) == len(keys.data) else None


def length_as_text(integers: npt.NDArray[np.int64]) -> int:
    """Return the total length of all integers as text."""
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


def check_ids(field: Any, key: str, types: str | None = None) -> None:
    """Raise ValueError for a column of a table that cannot have ids; `types` are those of its files."""
    if (field.metadata or {}).items() >= JSON_TEXT.items():
        raise ValueError(f"{key}: ids are objects or arrays of JSON; give a column of text or integers")
    _kind(field.type, key, types)


def _kind(dtype: Any, key: str, types: str | None = None) -> Kind:
    if pa.types.is_dictionary(dtype):
        return _kind(dtype.value_type, key)
    if pa.types.is_integer(dtype):
        return "int64"
    if is_text(dtype):
        return "string"
    if pa.types.is_null(dtype):
        raise ValueError(f"{key}: the column has no values; complete it, or leave out a table without rows")
    raise ValueError(f"{key}: ids are {types or dtype}; convert the column to text or integers")
