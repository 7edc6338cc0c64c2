"""Dealing of edges to ranges of destinations, and rows by 32-bit positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.deal_edges import deal_edges, take_rows


@given(
    st.lists(st.integers(0, 99), max_size=200),
    st.integers(0, 6),
    st.sampled_from([0, 7, 2**33]),
    st.sampled_from([np.int32, np.int64]),
)
def test_equals_a_stable_sort_by_range(
    destinations: list[int], shift: int, first: int, dtype: type[np.signedinteger]
) -> None:
    first = first if dtype is np.int64 else min(first, 7)
    given_ids = np.array(destinations, dtype) + dtype(first)
    begin, order = deal_edges(given_ids, first, shift, (99 >> shift) + 1)
    ranges = (given_ids.astype(np.int64) - first) >> shift
    assert np.diff(begin, prepend=0).tolist() == [0, *np.bincount(ranges, minlength=(99 >> shift) + 1)]
    assert order.tolist() == np.argsort(ranges, kind="stable").tolist()


@pytest.mark.parametrize("bad", [-1, 4, 12])
def test_the_first_destination_outside_is_named(bad: int) -> None:
    ids = np.array([5, 11, bad, bad])
    with pytest.raises(ValueError, match=rf"destination {bad} at position 2: must be in \[5, 12\)"):
        deal_edges(ids, 5, 0, 7)


@given(st.data(), st.sampled_from([(), (1,), (3,), (2, 5)]), st.sampled_from(["u1", "<i2", "<f4", "<i8"]))
def test_rows_are_taken_in_order(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    table = np.arange(10 * int(np.prod(shape))).reshape(10, *shape).astype(dtype)
    order = np.array(data.draw(st.lists(st.integers(0, 9), max_size=30)), np.uint32)
    taken = take_rows(table, order)
    assert taken.dtype == table.dtype
    assert np.array_equal(taken, table[order])


def test_rows_without_bytes_and_rows_that_are_not_there() -> None:
    assert take_rows(np.empty((3, 0)), np.array([2, 2], np.uint32)).shape == (2, 0)
    with pytest.raises(ValueError, match="row at position 1: there are 3"):
        take_rows(np.arange(3), np.array([0, 3], np.uint32))
