"""Texts as sums of signs of their words, weighted by rarity in the training rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.encode_category import texts_of
from khop.importing.encoder import Encoded, Where

_WORD = re.compile(r"[^\W_]+")
_SIGN_BITS = 64


@dataclass(frozen=True)
class TextEncoder:
    """Weighted sums of +1 and -1 per word, of length 1; a text without known words gives zeros."""

    key: str
    words: int
    width: int
    bigrams: str
    texts: int  # of training
    counts: Mapping[int, int]  # by bucket: the texts of training that have it

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode texts; a word of a bucket that training lacks adds nothing."""
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
    """Yield the bucket of each word, in lower case, and of each pair of adjacent words."""
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
    """Return +1 and -1 by the bits of a digest of the bucket."""
    size = -(-width // _SIGN_BITS) * (_SIGN_BITS // 8)
    digest = b"".join(
        blake2b(bucket.to_bytes(8, "little"), digest_size=64, salt=block.to_bytes(8, "little")).digest()
        for block in range(-(-size // 64))
    )
    bits = np.unpackbits(np.frombuffer(digest, np.uint8), count=width)
    return bits.astype(np.float64) * 2 - 1
