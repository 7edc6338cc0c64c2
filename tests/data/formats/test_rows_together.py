"""Streams in blocks of any size are read in step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.data.formats.raw_arrays import rows_together


@given(st.integers(0, 30), st.lists(st.sets(st.integers(1, 29)), min_size=1, max_size=3))
def test_rows_of_all_streams_meet(count: int, cuts: list[set[int]]) -> None:
    streams = [iter(np.split(np.arange(count), sorted(cut for cut in at if cut < count))) for at in cuts]
    rows = [
        row for parts in rows_together(streams, "a") for row in zip(*(p.tolist() for p in parts), strict=True)
    ]
    assert rows == [(row,) * len(cuts) for row in range(count)]


def test_streams_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="a: edges and their columns have different numbers of rows"):
        list(rows_together([iter([np.arange(3)]), iter([np.arange(2)])], "a"))
