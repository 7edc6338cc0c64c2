"""Short texts as counts of hashed words: features of a description without its text."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

BUCKETS = 512
_TOKEN = re.compile(r"[\w.+-]+")  # package names are tokens: "libc6", "g++", "x11-utils"
_WORD = re.compile(r"[^\W_]+")


def word_buckets(text: str, own_name: str) -> list[int]:
    """Return the bucket of each word of `text`, ascending, one entry per occurrence.

    Words are runs of letters and digits, in lower case. A token equal to `own_name` is dropped first: a
    package's name is not a feature.
    """
    tokens = (token.strip(".+-") for token in _TOKEN.findall(text.lower()))
    stripped = own_name.lower().strip(".+-")
    return sorted(_bucket(word) for token in tokens if token != stripped for word in _WORD.findall(token))


def word_counts(
    rows: npt.NDArray[np.int32], buckets: npt.NDArray[np.int32], num_rows: int
) -> npt.NDArray[np.uint8]:
    """Return (rows, BUCKETS) uint8 counts of each (row, bucket) in the two vectors, 255 at most.

    The number of rows is `num_rows`.
    """
    cells, counts = np.unique(rows.astype(np.int64) * BUCKETS + buckets, return_counts=True)
    table = np.zeros(num_rows * BUCKETS, np.uint8)
    table[cells] = np.minimum(counts, np.iinfo(np.uint8).max)
    return table.reshape(num_rows, BUCKETS)


@lru_cache(maxsize=1 << 16)
def _bucket(word: str) -> int:
    """Return the first two bytes of the word's BLAKE2b digest (size 2), little endian, modulo BUCKETS."""
    return int.from_bytes(blake2b(word.encode(), digest_size=2).digest(), "little") % BUCKETS
