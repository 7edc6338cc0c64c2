"""Facts of the columns of a table, each counted over all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from khop.importing.encode_category import texts_of
from khop.importing.encode_number import is_text
from khop.importing.id_column import keys_of
from khop.importing.packages import pa, pc
from khop.importing.rows import Table, read_pieces
from khop.importing.times import ZONE
from khop.kernels.id_table import IdTable, Kind, id_table

MOST_CATEGORIES = 1000  # distinct values that are counted
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_TIME = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?$"
_TRUTH = frozenset({"true", "false", "yes", "no", "t", "f"})


@dataclass(eq=False)
class ColumnFacts:
    """Facts that hold for all rows of a column."""

    name: str
    dtype: Any  # of pyarrow
    rows: int = 0
    nulls: int = 0
    words: int = 0  # in all rows
    is_number: bool = True
    is_time: bool = True
    has_zone: bool = True  # all times have one
    has_fraction: bool = False
    low: float = float("inf")  # of numbers, also in text
    high: float = float("-inf")
    least: Any = None  # of times and of whole numbers
    greatest: Any = None
    keys: IdTable[Any] | None = None  # None: not unique, or no id
    distinct: set[str] | None = field(default_factory=set)  # None: more than MOST_CATEGORIES

    @classmethod
    def of(cls, name: str, dtype: Any) -> ColumnFacts:
        """Return the facts of no rows."""
        if pa.types.is_dictionary(dtype):
            dtype = dtype.value_type
        kind: Kind | None = "string" if is_text(dtype) else "int64" if pa.types.is_integer(dtype) else None
        return cls(name, dtype, keys=None if kind is None else id_table(kind))

    @property
    def kind(self) -> Kind | None:
        """The kind of ids that the column could hold; None if its type is none of ids."""
        return "string" if is_text(self.dtype) else "int64" if pa.types.is_integer(self.dtype) else None

    @property
    def is_truth(self) -> bool:
        """True if all values are words for true and false."""
        words = {text.lower() for text in self.distinct or ()}
        return pa.types.is_boolean(self.dtype) or bool(words and words <= _TRUTH)

    def add(self, array: Any) -> None:
        """Take the next rows into account."""
        self.rows += len(array)
        self.nulls += array.null_count
        values = array.drop_null()
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        self._find_twice(values, array.null_count)
        if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
            self.is_number = self.is_time = False
            self.distinct = None
            return
        if self.distinct is not None:
            self.distinct.update(texts_of(values.unique(), self.name, str).to_pylist())
            self.distinct = self.distinct if len(self.distinct) <= MOST_CATEGORIES else None
        self._type(values)

    def _find_twice(self, values: Any, nulls: int) -> None:
        if self.keys is None or self.kind is None or not len(values):
            return
        try:
            twice = self.keys.append(keys_of(values, self.kind, self.name, str))
        except ValueError:  # an unsigned integer beyond int64
            twice = 0
        if twice >= 0 or nulls:
            self.keys = None

    def _type(self, values: Any) -> None:
        if not len(values):
            return
        if is_text(values.type):
            self.is_number &= _all(values, _NUMBER)
            self.is_time &= _all(values, _TIME)
            self.has_zone &= self.is_time and _all(values, ZONE)
            self.words += (
                len(values) + pc.sum(pc.count_substring(pc.utf8_trim_whitespace(values), " ")).as_py()
            )
        else:
            self.is_number &= pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
            self.is_time &= pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)
            self.has_zone &= pa.types.is_timestamp(values.type) and values.type.tz is not None
        if self.is_number:
            numbers = pc.utf8_trim_whitespace(values) if is_text(values.type) else values
            numbers = numbers.cast(pa.float64(), safe=False)
            self.low = min(self.low, pc.min(numbers).as_py())
            self.high = max(self.high, pc.max(numbers).as_py())
            self.has_fraction |= pc.any(pc.not_equal(numbers, pc.floor(numbers))).as_py()
        if self.is_time or pa.types.is_integer(values.type):
            ends = pc.min_max(values).as_py()
            self.least = ends["min"] if self.least is None else min(self.least, ends["min"])
            self.greatest = ends["max"] if self.greatest is None else max(self.greatest, ends["max"])


def _all(values: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def facts_of(table: Table) -> dict[str, ColumnFacts]:
    """Read all rows of a table once."""
    found = {one.name: ColumnFacts.of(one.name, one.type) for one in table.schema}
    for piece in read_pieces(table, list(found)):
        rows = piece()
        for name, facts in found.items():
            facts.add(rows.column(name))
    return found


def found_in(
    table: Table, columns: list[str], keys: Mapping[str, ColumnFacts]
) -> Iterator[tuple[str, str, int]]:
    """Read the columns of a table once; yield how many values of each are among the keys of each type."""
    counts = {(name, node_type): 0 for name in columns for node_type in keys}
    for piece in read_pieces(table, columns) if counts else ():
        rows = piece()
        for name, node_type in list(counts):
            unique = keys[node_type]
            assert unique.keys is not None
            assert unique.kind is not None
            try:
                wanted = keys_of(rows.column(name).drop_null(), unique.kind, name, str)
            except ValueError:  # text that is no integer
                del counts[name, node_type]
                continue
            counts[name, node_type] += int((unique.keys.find(wanted) >= 0).sum()) if len(wanted) else 0
    for (name, node_type), count in counts.items():
        yield name, node_type, count
