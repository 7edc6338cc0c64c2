from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.kernels.sort_rows import (
    first_unsorted,
    first_unsorted_reference,
    sort_rows,
    sort_rows_reference,
)

ROWS = st.lists(st.lists(st.integers(-3, 3), max_size=6), min_size=1, max_size=6)


def rows_of(rows: list[list[int]]) -> tuple[Csc, torch.Tensor]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    times = torch.tensor([time for row in rows for time in row], dtype=torch.int64)
    return Csc(indptr, torch.arange(times.numel(), dtype=torch.int32)), times


@given(rows=ROWS)
def test_rows_are_in_the_order_of_time_and_equal_times_as_they_were(rows: list[list[int]]) -> None:
    csc, times = rows_of(rows)
    done, order = sort_rows(csc, times)
    expected, start = [], 0
    for row in rows:
        expected += [start + at for at in sorted(range(len(row)), key=row.__getitem__)]
        start += len(row)
    assert order.tolist() == expected == done.indices.tolist()
    assert torch.equal(sort_rows_reference(csc, times), order)
    assert first_unsorted(done, times[order]) == -1


@given(rows=ROWS)
def test_the_first_edge_that_is_too_early_is_found(rows: list[list[int]]) -> None:
    csc, times = rows_of(rows)
    falls, start = [], 0
    for row in rows:
        falls += [start + at for at in range(1, len(row)) if row[at] < row[at - 1]]
        start += len(row)
    assert first_unsorted(csc, times) == first_unsorted_reference(csc, times) == min(falls, default=-1)


@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows_on_any_number_of_threads(threads: int) -> None:
    rows = [[(row * 31 + at * at) % 17 for at in range(row % 9)] for row in range(20_000)]
    csc, times = rows_of(rows)
    assert torch.equal(sort_rows(csc, times, threads=threads)[1], sort_rows_reference(csc, times))
    assert first_unsorted(csc, times, threads=threads) == first_unsorted_reference(csc, times)


def test_on_another_device_rows_are_sorted_there() -> None:
    csc = Csc(torch.tensor([0, 2, 3], device="meta"), torch.zeros(3, dtype=torch.int32, device="meta"))
    done, order = sort_rows(csc, torch.zeros(3, dtype=torch.int64, device="meta"))
    assert order.device.type == done.indices.device.type == "meta"
    assert order.shape == (3,)
    assert done.indices.dtype == torch.int32


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            torch.zeros(2, dtype=torch.int64),
            r"times is torch.int64 \(2,\) on cpu: must be int64 \(3\) on cpu",
        ),
        (torch.zeros(3), r"times is torch.float32 \(3,\) on cpu: must be int64 \(3\)"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), r"on meta: must be int64 \(3\) on cpu"),
    ],
    ids=["too few", "no whole numbers", "elsewhere"],
)
def test_times_that_are_not_those_of_the_edges_are_named(times: torch.Tensor, message: str) -> None:
    csc, _ = rows_of([[1, 2], [3]])
    for function in (sort_rows, first_unsorted):
        with pytest.raises(ValueError, match=message):
            function(csc, times)
