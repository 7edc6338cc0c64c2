"""Edges sorted through the disk: the bits of a stable sort, for any threads, budget and chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.spilled_edges import LARGE, SMALL, edges_with_hubs, expected, plan_of, written


@settings(max_examples=20)
@given(
    st.sampled_from([0, 1, 5000, 9000]),
    st.sampled_from([1, 2, 3000, 70_000]),
    st.sampled_from(["", "time"]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_neither_threads_nor_budget_nor_chunks_change_a_bit(
    count: int, num_destinations: int, sort_by: str, has_columns: bool, seed: int
) -> None:
    chunk = edges_with_hubs(count, num_destinations, seed)
    if not has_columns and not sort_by:
        chunk = replace(chunk, columns={})
    plan = plan_of(chunk, num_destinations, sort_by=sort_by)
    right = expected(chunk, plan)
    entries = []
    for memory, threads, step in (
        (SMALL, 1, 777),
        (SMALL, 2, 5000),
        (4 * SMALL, 4, 1300),
        (LARGE, 2, 100_000),
    ):
        with TemporaryDirectory() as folder:
            entry, arrays = written(Path(folder), chunk, plan, memory, threads, step)
        assert arrays.keys() == right.keys()
        for name, values in right.items():
            assert arrays[name].dtype == values.dtype, name
            assert np.array_equal(arrays[name], values), name
        entries.append(entry)
    assert all(entry == entries[0] for entry in entries)
