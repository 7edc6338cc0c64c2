"""Rows of keys by an index that lies in files: ids by bucket of the key's XXH64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import khop._core as _core
from khop.kernels.id_table import Int64s, Keys, StringKeys

_FULL = 4  # keys of a bucket, on average


@dataclass(frozen=True, eq=False)
class KeyIndex:
    """Buckets of a table of keys. Bucket b holds the rows and tags from buckets[b] to buckets[b + 1] - 1."""

    buckets: Int64s  # a power of two, and one
    rows: npt.NDArray[Any]  # int32 or int64 (keys)
    tags: npt.NDArray[np.int16]  # the last 16 bits of each digest

    def find(self, stored: Keys, wanted: Keys) -> Int64s:
        """Return the row of each wanted key among the stored ones, -1 where none equals it.

        ValueError for wanted keys of another kind, and for damaged files.
        """
        found = np.empty(len(wanted), np.int64)
        if isinstance(stored, StringKeys) and isinstance(wanted, StringKeys):
            there, sought = (stored.offsets, stored.data), (wanted.offsets, wanted.data)
            _core.find_text_keys(self.buckets, self.rows, self.tags, *there, *sought, found)
        elif isinstance(stored, np.ndarray) and isinstance(wanted, np.ndarray):
            _core.find_integer_keys(self.buckets, self.rows, self.tags, stored, wanted, found)
        else:
            kinds = {True: "strings", False: "integers"}
            stored_kind, given = (kinds[isinstance(keys, StringKeys)] for keys in (stored, wanted))
            raise ValueError(f"ids are {given}: this table has {stored_kind}")
        return found


def bucket_bits(keys: int) -> int:
    """Return the bits that number the buckets of a table of so many keys."""
    return max(0, (keys // _FULL).bit_length() - 1)


def key_buckets(keys: Keys, bits: int) -> tuple[Int64s, npt.NDArray[np.int16]]:
    """Return the bucket and the tag of each key."""
    bucket, tag = np.empty(len(keys), np.int64), np.empty(len(keys), np.int16)
    if isinstance(keys, StringKeys):
        _core.text_buckets(keys.offsets, keys.data, bits, bucket, tag)
    else:
        _core.integer_buckets(keys, bits, bucket, tag)
    return bucket, tag
