"""Rows on disk by ranges of a key, and ranges themselves."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.spill import MOST_RANGES, Field, Ranges, Spill


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**62))
def test_ranges_cover_all_values_once(first: int, values: int) -> None:
    ranges = Ranges.of(first, first + values)
    assert 1 <= ranges.count <= MOST_RANGES
    assert ranges.begin(0) == first
    assert ranges.begin(ranges.count) == first + values
    assert all(ranges.begin(n) < ranges.begin(n + 1) for n in range(ranges.count) if values)
    if ranges.shift:
        assert ranges.within(0).shift < ranges.shift


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.integers(1, 20), st.integers(1, 30))
def test_groups_cover_all_ranges_once_and_keep_to_their_size(
    counts: list[int], most: int, most_values: int
) -> None:
    ranges = Ranges(0, 2 * len(counts), 1, len(counts))
    groups = list(ranges.grouped(np.array(counts), most, most_values))
    assert [n for first, end in groups for n in range(first, end)] == list(range(len(counts)))
    for first, end in groups:
        assert end == first + 1 or (sum(counts[first:end]) <= most and 2 * (end - first) <= most_values)


def test_rows_are_read_by_range_in_the_order_of_the_runs(tmp_path: Path) -> None:
    fields = [Field("key", "int64"), Field("x", "float32", (2,))]
    spill = Spill(tmp_path / "rows", fields, "key", Ranges.of(10, 14))
    for keys in ([13, 10, 13], [], [11, 13]):
        rows = np.array(keys, np.int64)
        spill.append({"key": rows, "x": np.stack([rows, rows + 100], 1)})
    assert spill.counts().tolist() == [1, 1, 0, 3]
    assert spill.read("x", 3, 4).tolist() == [[13, 113], [13, 113], [13, 113]]
    assert spill.read("key", 0, 2).tolist() == [10, 11]
    assert [rows["key"].tolist() for rows in spill.pieces(3, 1)] == [[13], [13], [13]]
    assert spill.row_bytes == 16
    spill.save()
    again = Spill(tmp_path / "rows", fields, "key", Ranges.of(10, 14))
    again.load()
    assert again.read("key", 0, 4).tolist() == [10, 13, 13, 11, 13]
    spill.close()
    assert not (tmp_path / "rows").exists()


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "rows", [Field("key", "int64")], "key", Ranges.of(0, 4))
    spill.append({"key": np.arange(4)})
    os.truncate(tmp_path / "rows", 8)
    with pytest.raises(OSError, match="rows: is shorter than was written"):
        spill.read("key", 0, 4)
