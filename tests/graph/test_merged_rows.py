"""New rows between the rows of an array, chunk by chunk."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from khop.graph import append_rows as merged_rows
from khop.graph.append_rows import MergedRows, at_end, merged_offsets

PLACES = st.lists(st.integers(0, 40), max_size=30)


@given(PLACES, st.integers(0, 40), st.sampled_from([8, 24, 1 << 20]))
def test_chunks_give_what_one_insertion_does(places: list[int], count: int, chunk: int) -> None:
    at = np.sort(np.minimum(np.array(places, np.int64), count))
    table, added = np.arange(count, dtype=np.int32), -1 - np.arange(len(at))
    with patch.object(merged_rows, "CHUNK_BYTES", chunk):
        chunks = list(MergedRows(count, at).chunks(lambda first, last: table[first:last], added))
    np.testing.assert_array_equal(np.concatenate(chunks), np.insert(table.astype(np.int64), at, added))


@given(
    st.lists(st.integers(0, 6), max_size=20),
    st.lists(st.integers(0, 9), max_size=20),
    st.sampled_from([8, 24, 1 << 20]),
)
def test_offsets_count_the_entries_of_both(base: list[int], new: list[int], chunk: int) -> None:
    old = np.concatenate([[0], np.cumsum(np.bincount(np.array(base, np.int64), minlength=7))])
    rows = np.sort(np.array(new, np.int64))
    with patch.object(merged_rows, "CHUNK_BYTES", chunk):
        chunks = list(merged_offsets(lambda first, last: old[first:last], 7, rows, 10))
    whole = np.bincount(np.array(base + new, np.int64), minlength=10)
    np.testing.assert_array_equal(np.concatenate(chunks), np.concatenate([[0], np.cumsum(whole)]))


def test_rows_at_the_end_are_known_to_be() -> None:
    assert at_end(3, 2).is_at_end
    assert at_end(3, 0).is_at_end
    assert not MergedRows(3, np.array([2, 3])).is_at_end
    assert len(MergedRows(3, np.array([2, 3]))) == 5
