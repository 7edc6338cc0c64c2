"""Indexes of keys: every key leads to its row, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.id_table import StringKeys
from khop.kernels.key_index import bucket_bits, key_buckets
from support.key_indexes import key_index_of

KEYS = st.lists(st.text(max_size=20), unique=True, max_size=60) | st.lists(
    st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60
)


def keys_of(values: list[Any], kind: type) -> Any:  # noqa: ANN401
    return StringKeys.of(values) if kind is str else np.array(values, np.int64)


@given(KEYS, st.data())
def test_each_key_leads_to_its_row(stored: list[Any], data: st.DataObject) -> None:
    kind = type(stored[0]) if stored else str
    others = data.draw(st.lists(st.text(max_size=5) if kind is str else st.integers(-9, 9), max_size=20))
    keys = keys_of(stored, kind)
    index = key_index_of(keys)
    found = index.find(keys, keys_of(others + stored, kind))
    rows = {key: row for row, key in enumerate(stored)}
    assert found.tolist() == [rows.get(key, -1) for key in others + stored]


def test_buckets_and_tags_are_those_of_the_documented_digest() -> None:
    """XXH64 of "" with seed 0 is ef46db3751d8e999, of "a" d24ec4f1a98c6e5b."""
    bucket, tag = key_buckets(StringKeys.of(["", "a"]), 8)
    assert bucket.tolist() == [0xEF, 0xD2]
    assert tag.tolist() == [0xE999 - 0x10000, 0x6E5B]
    assert key_buckets(StringKeys.of(["a"]), 0)[0].tolist() == [0]
    as_text = StringKeys(np.array([0, 8]), np.array([7], np.int64).view(np.uint8))
    assert key_buckets(np.array([7]), 8)[1].tolist() == key_buckets(as_text, 8)[1].tolist()


@pytest.mark.parametrize(("keys", "bits"), [(0, 0), (4, 0), (8, 1), (15, 1), (16, 2), (1 << 32, 30)])
def test_buckets_have_four_to_eight_keys(keys: int, bits: int) -> None:
    assert bucket_bits(keys) == bits


def test_damaged_files_are_an_error_and_no_crash() -> None:
    names = StringKeys.of([f"n{n}" for n in range(100)])
    index = key_index_of(names)
    with pytest.raises(ValueError, match=r"buckets: bucket .* lies outside of the ids"):
        replace(index, buckets=index.buckets + 1000).find(names, names)
    with pytest.raises(ValueError, match=r"rows: position .* names no node"):
        replace(index, rows=index.rows + np.int32(100)).find(names, names)
    with pytest.raises(ValueError, match=r"offsets: row .* lies outside of the bytes"):
        index.find(StringKeys(names.offsets + 5000, names.data), names)
    with pytest.raises(ValueError, match="tags"):
        replace(index, tags=index.tags[1:]).find(names, names)


def test_ids_of_another_kind_are_refused() -> None:
    names, numbers = StringKeys.of(["a"]), np.array([1])
    with pytest.raises(ValueError, match="ids are integers: this table has strings"):
        key_index_of(names).find(names, numbers)
