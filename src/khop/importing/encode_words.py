"""Bags of words as sparse rows: an entry per known word, not a number per word of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from khop.importing.encode_category import texts_of
from khop.importing.encode_number import as_lists
from khop.importing.encode_text import bucket_of, buckets_of
from khop.importing.encoder import Encoded, Where
from khop.importing.packages import pa
from khop.kernels.sparse_column import packed

Values = Literal["rarity", "one"]


@dataclass(frozen=True)
class Bags:
    """How a row becomes a set of buckets: the words of a text, or the entries of a list."""

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
    """Entries of a row's words, weighted by rarity in training or all 1; a null has none."""

    bags: Bags
    values: Values
    most: int
    texts: int  # of training
    longest: int  # entries that a stored row has room for
    counts: Mapping[int, int]  # by bucket: the rows of training that have it

    @property
    def width(self) -> int:
        """Numbers of a row, with those that are not stored."""
        return self.bags.words

    def encode(self, array: Any, where: Where) -> Encoded:
        """Return int32 (rows, 2, longest), as sparse columns are stored, without words that training lacks.

        A row with more known words than there is room for keeps the rarest ones.
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
        """Return the values of a row's entries: 1, or weights by rarity with a sum of squares of 1."""
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
    """Numbers of rows by bucket, and the most entries of a row."""

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
        """Return the encoder; ValueError if sparse rows would take more room than dense ones."""
        if self.longest > 1 and self.bags.words < 2 * self.longest:
            raise ValueError(
                f"{self.bags.key}: rows have up to {self.longest:,} of {self.bags.words:,} words, and a "
                f"sparse row would take more room than a dense one; give words = {4 * self.longest:,} or "
                'more, a lower most, or kind = "text"'
            )
        return WordsEncoder(self.bags, self.values, self.most, self.texts, self.longest, self.counts)
