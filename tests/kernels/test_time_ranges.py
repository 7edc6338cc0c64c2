from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.kernels.time_ranges import time_ranges, time_ranges_reference
from khop.testing.reference import allowed_range
from support.draws import rising

LOW, HIGH = -(2**63), 2**63 - 1
TIMES = st.integers(-20, 20) | st.integers(LOW, HIGH) | st.sampled_from([LOW, LOW + 1, HIGH - 1, HIGH])
WINDOWS = (
    st.none() | st.tuples(st.integers(0, 30), st.integers(-30, 0)) | st.just((2**62, 0)) | st.just((HIGH, -9))
)


def rows_of(rows: list[list[int]]) -> tuple[Csc, torch.Tensor]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    times = torch.tensor([time for row in rows for time in row], dtype=torch.int64)
    return Csc(indptr, torch.zeros(times.numel(), dtype=torch.int32)), times


@given(
    rows=st.lists(st.lists(TIMES, max_size=12).map(sorted), min_size=1, max_size=5),
    window=WINDOWS,
    most=st.integers(-1, 5),
    data=st.data(),
)
def test_what_a_limit_leaves_is_what_the_specification_says(
    rows: list[list[int]], window: tuple[int, int] | None, most: int, data: st.DataObject
) -> None:
    csc, times = rows_of(rows)
    asked = data.draw(st.lists(st.tuples(st.integers(0, len(rows) - 1), TIMES), max_size=9))
    nodes = torch.tensor([node for node, _ in asked], dtype=torch.int64)
    until = torch.tensor([limit for _, limit in asked], dtype=torch.int64)
    found = time_ranges(csc, rising(csc, times), nodes, until, window, most)
    assert torch.equal(time_ranges_reference(csc, times, nodes, until, window, most), found)
    for (node, limit), (begin, end) in zip(asked, found.reshape(-1, 2).tolist(), strict=True):
        first, last = allowed_range(rows[node], limit, window)
        if most >= 0:
            first = max(first, last - most)
        start = int(csc.indptr[node])
        assert list(range(begin, end)) == list(range(start + first, start + last))


@pytest.mark.parametrize("threads", [1, 4])
def test_long_rows_and_uneven_times(threads: int) -> None:
    """Guesses from a row's ends are far off where times grow by powers; the answer is the same."""
    rows = [sorted((i * 7919 % 1000) ** (1 + row % 4) for i in range(row * 3)) for row in range(300)]
    csc, times = rows_of(rows)
    nodes = torch.arange(3000) % 300
    until = (torch.arange(3000) * 104729 % 1_200_000) ** 2 % (10**9)
    found = time_ranges(csc, rising(csc, times), nodes, until, (10**6, -3), threads=threads)
    assert torch.equal(time_ranges_reference(csc, times, nodes, until, (10**6, -3), -1), found)


def test_a_node_that_is_no_row_and_limits_that_are_not_there_are_refused() -> None:
    csc, times = rows_of([[1, 2], [3]])
    with pytest.raises(ValueError, match=r"frontier node 2: not in \[0, 2\)"):
        time_ranges(csc, rising(csc, times), torch.tensor([2]), torch.tensor([5]))
    with pytest.raises(ValueError, match=r"until is .*: must be int64 \(1\)"):
        time_ranges(csc, rising(csc, times), torch.tensor([1]), torch.tensor([5, 6]))
    in_floats = replace(rising(csc, times), values=times.float())
    with pytest.raises(ValueError, match=r"times is .*float32.*: must be int64 \(3\)"):
        time_ranges(csc, in_floats, torch.tensor([1]), torch.tensor([5]))
