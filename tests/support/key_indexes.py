"""Indexes of keys, built with NumPy."""

from __future__ import annotations

import numpy as np

from khop.kernels.id_table import KeyIndex, Keys, bucket_bits, key_buckets


def key_index_of(keys: Keys) -> KeyIndex:
    """Build the index of keys that are in memory."""
    bits = bucket_bits(len(keys))
    bucket, tag = key_buckets(keys, bits)
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=1 << bits))
    return KeyIndex(np.append(0, ends), order.astype(np.int32), tag[order])
