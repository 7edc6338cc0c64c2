"""Rows with parallel edges are found, in short and in long rows, by any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.kernels.parallel_rows import parallel_rows, parallel_rows_reference

ROWS = st.lists(st.lists(st.integers(0, 30), max_size=25), min_size=1, max_size=8)


def csc_of(rows: list[list[int]], dtype: torch.dtype = torch.int32) -> Csc:
    flat = torch.tensor([source for row in rows for source in row], dtype=dtype)
    return Csc(torch.tensor([0, *map(len, rows)]).cumsum(0), flat)


@given(rows=ROWS, dtype=st.sampled_from([torch.int32, torch.int64]))
def test_a_row_is_marked_where_a_source_comes_twice(rows: list[list[int]], dtype: torch.dtype) -> None:
    csc = csc_of(rows, dtype)
    expected = [int(len(set(row)) < len(row)) for row in rows]
    assert parallel_rows(csc).tolist() == expected
    assert parallel_rows_reference(csc).tolist() == expected


def test_threads_change_nothing() -> None:
    rows = [[at % (40 - row % 3) for at in range(row % 41)] for row in range(20_000)]
    csc = csc_of(rows)
    expected = parallel_rows_reference(csc)
    assert 0 < int(expected.sum()) < len(rows)
    for threads in (1, 2, 5):
        assert torch.equal(parallel_rows(csc, threads=threads), expected)


def test_a_damaged_row_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 begins at 9"):
        parallel_rows(Csc(torch.tensor([0, 9, 2]), torch.zeros(2, dtype=torch.int32)))
