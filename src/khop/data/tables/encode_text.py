"""Encoders of categories, relations and text, fitted to the training rows.

Text is encoded by feature hashing with random signs and IDF weights, or as sparse bags of words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from khop.data.tables.encode_numbers import Encoded, StoredFields, Where, as_lists
from khop.data.tables.packages import converted, numpy_of, pa, pc
from khop.kernels.lazy_rows import packed

_OTHER, _NULL = 0, 1  # the first two numbers of a row, before those of the categories
_BESIDE = 2
_MOST_DISTINCT = 1 << 22  # per column: each takes about 150 bytes of memory while counting


@dataclass(frozen=True)
class CategoryEncoder(StoredFields):
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
        """Encode categories; rows with unknown categories are counted."""
        values = np.zeros((len(array), self.width), np.float32)
        values[numpy_of(array.is_null()), _NULL] = 1
        rows, places = self._entries(array, where)
        values[rows, places] = 1
        return Encoded(values, int(values[:, _OTHER].sum()))

    def codes(self, array: Any, where: Where) -> Encoded:
        """Return the index of each row's single category, int64 (rows), instead of numbers."""
        codes = np.full(len(array), _NULL)
        rows, places = self._entries(array, where)
        codes[rows] = places
        return Encoded(codes, int((codes == _OTHER).sum()))

    def _entries(self, array: Any, where: Where) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row of each category that is not null, and its index in the row."""
        rows, texts = _rows_and_texts(array, self.several, self.separator, self.key, where)
        codes, names = _coded(texts)
        return rows, np.array([self._places.get(name, _OTHER) for name in names], np.int64)[codes]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: number + _BESIDE for number, name in enumerate(self.categories)}

    def state(self) -> Mapping[str, Any]:
        """Return settings and categories as JSON values; one-hot in the form of earlier versions."""
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
                'are counted in memory; give kind = "text", or for nodes "words", which hash them, or remove '
                "the column"
            )

    def encoder(self) -> CategoryEncoder:
        """Return the encoder of the most frequent categories; equal counts follow first appearance."""
        frequent = [name for name, count in self.counts.items() if count >= self.min_count]
        frequent.sort(key=lambda name: -self.counts[name])
        categories = tuple(frequent[: self.limit])
        return CategoryEncoder(self.key, self.several, self.separator, categories, self.encoding)


@dataclass(frozen=True)
class RelationEncoder(StoredFields):
    """Relations as integers, in ascending order of all names of the edge table."""

    key: str
    names: tuple[str, ...]
    width: int = 1

    def encode(self, array: Any, where: Where) -> Encoded:
        """Return the codes, int64 (rows, 1); ValueError for a null and for a relation without a code."""
        texts = texts_of(array, self.key, where)
        codes = numpy_of(pc.fill_null(pc.index_in(texts, pa.array(self.names, pa.string())), -1))
        if len(codes) and codes.min() < 0:
            row = int(np.argmin(codes))
            name = texts[row].as_py()
            problem = f"{name!r}, which is not one of the {len(self.names):,} relations of the graph"
            raise ValueError(
                f"{where(row)}: {self.key} is {'null' if name is None else problem}; correct the row, or "
                "exclude it by where"
            )
        return Encoded(codes.astype(np.int64)[:, None])


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
    reason = "neither text nor a number; convert the column"
    return converted(array, lambda part: part.cast(pa.string()), key, where, reason, "give another kind")


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


_WORD = re.compile(r"[^\W_]+")
_SIGN_BITS = 64


@dataclass(frozen=True)
class TextEncoder:
    """Weighted sums of +1 and -1 per word, normalized to length 1; zeros for a text without known words."""

    key: str
    words: int
    width: int
    bigrams: str
    texts: int  # in training
    counts: Mapping[int, int]  # by bucket: the number of training texts with it

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode texts; words of buckets without training texts are ignored."""
        values = np.zeros((len(array), self.width), np.float32)
        unknown = 0
        for row, text in enumerate(texts_of(array, self.key, where).to_pylist()):
            buckets = sorted(set(buckets_of(text or "", self.words, self.bigrams)))
            known = [bucket for bucket in buckets if bucket in self.counts]
            unknown += len(known) < len(buckets)
            if known:
                values[row] = self._sum(known)
        return Encoded(values, unknown)

    def _sum(self, buckets: list[int]) -> npt.NDArray[np.float64]:
        total = np.zeros(self.width)
        for bucket in buckets:
            total += math.log((1 + self.texts) / (1 + self.counts[bucket])) * _signs(bucket, self.width)
            total += _signs(bucket, self.width)
        length = math.sqrt(float(np.dot(total, total)))
        return total / length if length else total

    def state(self) -> Mapping[str, Any]:
        """Return settings and counts as JSON values."""
        buckets = sorted(self.counts)
        return {
            "key": self.key, "words": self.words, "width": self.width, "bigrams": self.bigrams,
            "texts": self.texts, "buckets": buckets, "counts": [self.counts[bucket] for bucket in buckets],
        }  # fmt: skip

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> TextEncoder:
        """Return the encoder of a state."""
        counts = dict(zip(state["buckets"], state["counts"], strict=True))
        return cls(
            state["key"], state["words"], state["width"], state["bigrams"], state["texts"], counts
        )  # fmt: skip


@dataclass
class TextFitter:
    """Numbers of texts by bucket."""

    key: str
    words: int
    width: int
    bigrams: str
    texts: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, array: Any, where: Where) -> None:
        """Add the texts of training rows."""
        for text in texts_of(array, self.key, where).to_pylist():
            self.texts += text is not None
            for bucket in set(buckets_of(text or "", self.words, self.bigrams)):
                self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def encoder(self) -> TextEncoder:
        """Return the encoder."""
        return TextEncoder(self.key, self.words, self.width, self.bigrams, self.texts, self.counts)


def buckets_of(text: str, words: int, bigrams: str) -> Iterable[int]:
    """Yield the bucket of each lower-case word, and of each pair of adjacent words."""
    found = _WORD.findall(text.lower())
    for word in found:
        yield bucket_of(word, words)
    if bigrams == "all":
        for one, other in pairwise(found):
            yield bucket_of(f"{one} {other}", words)


def bucket_of(word: str, words: int) -> int:
    """Return the bucket of a word among `words` buckets."""
    return _digest(word) % words


@lru_cache(maxsize=1 << 16)
def _digest(word: str) -> int:
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@lru_cache(maxsize=1 << 14)
def _signs(bucket: int, width: int) -> npt.NDArray[np.float64]:
    """Return signs by the bits of a digest of the bucket."""
    size = -(-width // _SIGN_BITS) * (_SIGN_BITS // 8)
    digest = b"".join(
        blake2b(bucket.to_bytes(8, "little"), digest_size=64, salt=block.to_bytes(8, "little")).digest()
        for block in range(-(-size // 64))
    )
    bits = np.unpackbits(np.frombuffer(digest, np.uint8), count=width)
    return bits.astype(np.float64) * 2 - 1


Values = Literal["rarity", "one"]


@dataclass(frozen=True)
class Bags:
    """Buckets of a row: those of the words of a text, or of the entries of a list."""

    key: str
    words: int  # buckets
    separator: str | None
    bigrams: str

    def of(self, array: Any, where: Where) -> Iterator[set[int] | None]:
        """Yield the buckets of each row; None for null."""
        if self.separator is None and not pa.types.is_nested(array.type):
            for text in texts_of(array, self.key, where).to_pylist():
                yield None if text is None else set(buckets_of(text, self.words, self.bigrams))
            return
        for row in as_lists(array, self.separator, self.key, where).to_pylist():
            entries = [str(entry).strip() for entry in row or () if entry is not None]
            yield None if row is None else {bucket_of(entry, self.words) for entry in entries}


@dataclass(frozen=True)
class WordsEncoder:
    """Entries of a row's words, weighted by rarity in training or all 1; none for a null."""

    bags: Bags
    values: Values
    most: int
    texts: int  # in training
    longest: int  # entries per stored row, including padding
    counts: Mapping[int, int]  # by bucket: the number of training rows with it

    @property
    def width(self) -> int:
        """Width of a row, including elements that are not stored."""
        return self.bags.words

    def encode(self, array: Any, where: Where) -> Encoded:
        """Return int32 (rows, 2, longest), the form of sparse columns, of words that are in training.

        A row with more than `longest` known words keeps the rarest ones.
        """
        indptr, places, numbers, unknown = [0], [], [], 0
        for bag in self.bags.of(array, where):
            known = sorted(bucket for bucket in bag or () if bucket in self.counts)
            unknown += len(known) < len(bag or ())
            kept = sorted(sorted(known, key=lambda bucket: self.counts[bucket])[: self.longest])
            places += kept
            numbers.append(self._numbers(kept))
            indptr.append(len(places))
        values = np.concatenate([np.zeros(0, np.float32), *numbers])
        rows = packed(
            torch.tensor(indptr),
            torch.tensor(places, dtype=torch.int64),
            torch.from_numpy(values),
            self.longest,
        )
        return Encoded(rows.numpy(), unknown)

    def _numbers(self, buckets: Iterable[int]) -> npt.NDArray[np.float32]:
        """Return the values of a row's entries: 1, or weights by rarity, normalized to length 1."""
        counts = np.array([self.counts[bucket] for bucket in buckets], np.float64)
        if self.values == "one" or not len(counts):
            return np.ones(len(counts), np.float32)
        weights = np.array([1 + math.log((1 + self.texts) / (1 + count)) for count in counts])
        return (weights / math.sqrt(float(np.dot(weights, weights)))).astype(np.float32)

    def state(self) -> Mapping[str, Any]:
        """Return settings and counts as JSON values."""
        buckets = sorted(self.counts)
        return {
            "key": self.bags.key, "words": self.bags.words, "separator": self.bags.separator,
            "bigrams": self.bags.bigrams, "values": self.values, "most": self.most, "texts": self.texts,
            "longest": self.longest, "buckets": buckets,
            "counts": [self.counts[bucket] for bucket in buckets],
        }  # fmt: skip

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> WordsEncoder:
        """Return the encoder of a state."""
        bags = Bags(state["key"], state["words"], state["separator"], state["bigrams"])
        counts = dict(zip(state["buckets"], state["counts"], strict=True))
        return cls(bags, state["values"], state["most"], state["texts"], state["longest"], counts)


@dataclass
class WordsFitter:
    """Number of rows by bucket, and the maximum number of entries of a row."""

    bags: Bags
    values: Values
    most: int
    texts: int = 0
    longest: int = 1
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, array: Any, where: Where) -> None:
        """Add the rows of training."""
        for bag in self.bags.of(array, where):
            self.texts += bag is not None
            self.longest = max(self.longest, min(self.most, len(bag or ())))
            for bucket in bag or ():
                self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def encoder(self) -> WordsEncoder:
        """Return the encoder; ValueError if sparse rows would be larger than dense ones."""
        if self.longest > 1 and self.bags.words < 2 * self.longest:
            raise ValueError(
                f"{self.bags.key}: rows have up to {self.longest:,} of {self.bags.words:,} words, and a "
                f"sparse row would be larger than a dense one; give words = {4 * self.longest:,} or "
                'more, a lower most, or kind = "text"'
            )
        return WordsEncoder(self.bags, self.values, self.most, self.texts, self.longest, self.counts)
