"""Categories, one or several per row, as one number for each that training has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import converted, numpy_of
from khop.importing.encode_number import as_lists
from khop.importing.encoder import Encoded, Where
from khop.importing.packages import pa, pc

_OTHER, _NULL = 0, 1  # the first two numbers of a row; those of the categories follow
_BESIDE = 2
_MOST_DISTINCT = 1 << 22  # of a column: each takes some 150 bytes of memory while it is counted


@dataclass(frozen=True)
class CategoryEncoder:
    """One number per category; the first two stand for other categories and for null."""

    key: str
    several: str  # "none", or "lists" for several categories per row
    separator: str | None
    categories: tuple[str, ...]
    encoding: str = "one-hot"  # or "embedding": the features of its node type are sparse rows

    @property
    def width(self) -> int:
        """Numbers per row."""
        return len(self.categories) + _BESIDE

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode categories; the rows with one that training lacks are counted."""
        values = np.zeros((len(array), self.width), np.float32)
        values[numpy_of(array.is_null()), _NULL] = 1
        rows, places = self._entries(array, where)
        values[rows, places] = 1
        return Encoded(values, int(values[:, _OTHER].sum()))

    def codes(self, array: Any, where: Where) -> Encoded:
        """Return the place of each row's one category among its numbers, int64 (rows), and no numbers."""
        codes = np.full(len(array), _NULL)
        rows, places = self._entries(array, where)
        codes[rows] = places
        return Encoded(codes, int((codes == _OTHER).sum()))

    def _entries(self, array: Any, where: Where) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row of each category that is not null, and its place among the numbers of a row."""
        rows, texts = _rows_and_texts(array, self.several, self.separator, self.key, where)
        codes, names = _coded(texts)
        return rows, np.array([self._places.get(name, _OTHER) for name in names], np.int64)[codes]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: number + _BESIDE for number, name in enumerate(self.categories)}

    def state(self) -> Mapping[str, Any]:
        """Return settings and categories as JSON values; one-hot as folders of earlier versions have it."""
        state = asdict(self)
        return state if self.encoding != "one-hot" else {n: v for n, v in state.items() if n != "encoding"}


@dataclass
class CategoryFitter:
    """Counts of categories in the order of their first appearance."""

    key: str
    several: str
    separator: str | None
    limit: int
    min_count: int
    encoding: str = "one-hot"
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, array: Any, where: Where) -> None:
        """Add the values of training rows."""
        _, texts = _rows_and_texts(array, self.several, self.separator, self.key, where)
        codes, names = _coded(texts)
        for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
            self.counts[name] = self.counts.get(name, 0) + count
        if len(self.counts) > _MOST_DISTINCT:
            raise ValueError(
                f"{self.key}: training rows have more than {_MOST_DISTINCT:,} different categories, which "
                'are counted in memory; give kind = "text", or of nodes "words", which hash them, or leave '
                "the column out"
            )

    def encoder(self) -> CategoryEncoder:
        """Return the encoder of the most frequent categories; equal counts follow first appearance."""
        frequent = [name for name, count in self.counts.items() if count >= self.min_count]
        frequent.sort(key=lambda name: -self.counts[name])
        categories = tuple(frequent[: self.limit])
        return CategoryEncoder(self.key, self.several, self.separator, categories, self.encoding)


@dataclass(frozen=True)
class RelationEncoder:
    """The number of each relation among all names of the edge table, in ascending order of the text."""

    key: str
    names: tuple[str, ...]
    width: int = 1

    def encode(self, array: Any, where: Where) -> Encoded:
        """Return the codes, int64 (rows, 1); ValueError for a null and for a relation without a code."""
        texts = texts_of(array, self.key, where)
        codes = numpy_of(pc.fill_null(pc.index_in(texts, pa.array(self.names, pa.string())), -1))
        if len(codes) and codes.min() < 0:
            row = int(np.argmin(codes))
            raise ValueError(
                f"{where(row)}: {self.key} is {texts[row].as_py()!r}, which is none of the "
                f"{len(self.names):,} relations of the graph; correct the row, or leave it out by where"
            )
        return Encoded(codes.astype(np.int64)[:, None])

    def state(self) -> Mapping[str, Any]:
        """Return the names as JSON values."""
        return asdict(self)


@dataclass
class RelationFitter:
    """Names of relations, of all rows."""

    key: str
    names: set[str] = field(default_factory=set)

    def add(self, array: Any, where: Where) -> None:
        """Add the names of rows."""
        self.names.update(texts_of(array.drop_null().unique(), self.key, where).to_pylist())

    def encoder(self) -> RelationEncoder:
        """Return the encoder."""
        return RelationEncoder(self.key, tuple(sorted(self.names)))


def texts_of(array: Any, key: str, where: Where) -> Any:
    """Return values as text: 3 and "3" are the same category. ValueError for lists and other structures."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    reason = "no text or number; convert the column, or give another kind"
    return converted(array, lambda part: part.cast(pa.string()), key, where, reason)


def _rows_and_texts(
    array: Any, several: str, separator: str | None, key: str, where: Where
) -> tuple[npt.NDArray[np.int64], Any]:
    """Return the categories that are not null, and the row of each."""
    if several == "none":
        texts = texts_of(array, key, where)
        rows = np.arange(len(array))
    else:
        lists = as_lists(array, separator, key, where)
        rows = numpy_of(pc.list_parent_indices(lists)).astype(np.int64)
        texts = texts_of(pc.list_flatten(lists), key, lambda at: where(int(rows[at])))
        texts = pc.utf8_trim_whitespace(texts) if separator is not None else texts
    valid = numpy_of(texts.is_valid())
    return rows[valid], texts.filter(pa.array(valid))


def _coded(texts: Any) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return a code for each text, and the texts by code in the order of first appearance."""
    encoded = texts.dictionary_encode()
    codes = numpy_of(encoded.indices).astype(np.int64)
    return codes, encoded.dictionary.to_pylist()
