from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.kernels.rising import HEAD, WINDOW, Rising, outline, outline_reference, outline_size
from khop.kernels.time_ranges import time_ranges, time_ranges_reference
from support.draws import rising

LOW, HIGH = -(2**63), 2**63 - 1
VALUES = st.integers(-9, 9) | st.integers(0, 2**18) | st.integers(LOW, HIGH) | st.sampled_from([LOW, HIGH])
ROWS = st.lists(st.lists(VALUES, max_size=90).map(sorted), min_size=1, max_size=5)


def rows_of(rows: list[list[int]]) -> tuple[Csc, torch.Tensor]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
    return Csc(indptr, torch.zeros(values.numel(), dtype=torch.int32)), values


@given(rows=ROWS, threads=st.integers(1, 3))
def test_an_outline_holds_the_ends_of_each_row_and_codes_that_order_its_values(
    rows: list[list[int]], threads: int
) -> None:
    csc, values = rows_of(rows)
    made = outline(csc, values, threads=threads)
    assert torch.equal(outline_reference(csc, values), made)
    assert made.numel() == outline_size(csc)
    assert made.numel() % WINDOW == 0
    for number, row in enumerate(rows):
        head = int(csc.indptr[number]) + HEAD * number
        codes = made[head + HEAD : head + HEAD + len(row)].tolist()
        assert codes == sorted(codes)
        if row:
            assert made[head : head + HEAD].clone().view(torch.int64).tolist() == [row[0], row[-1]]
            if row[-1] - row[0] < 2**16:
                assert codes == [value - row[0] - 2**15 for value in row]


@pytest.mark.parametrize(
    "row",
    [
        [0] * 1000 + [2**40],  # all but one share a code
        [2**40 + i // 100 for i in range(3000)] + [2**62],  # and so do these, at different values
        [2**i for i in range(62)],  # every guess from the ends is far off
        [i * i * i for i in range(5000)],
        list(range(5000)),
    ],
    ids=["one code", "close values", "powers", "cubes", "steps"],
)
def test_values_with_equal_codes_are_found(row: list[int]) -> None:
    csc, times = rows_of([[1], row, [5]])
    until = torch.tensor([bound + more for bound in row[::7] for more in (-1, 0, 1)])
    nodes = torch.ones_like(until)
    found = time_ranges(csc, rising(csc, times), nodes, until, (3, 0))
    assert torch.equal(time_ranges_reference(csc, times, nodes, until, (3, 0), -1), found)


def test_an_outline_of_another_graph_is_refused() -> None:
    csc, times = rows_of([[1, 2], [3]])
    for outline_of_another in (torch.zeros(64, dtype=torch.int16), torch.zeros(32, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"outline of times is .*: must be int16 \(32\); make it by"):
            time_ranges(csc, Rising(times, outline_of_another), torch.tensor([1]), torch.tensor([5]))
    with pytest.raises(ValueError, match=r"values is .*float32.*: must be int64 \(3\)"):
        outline(csc, times.float())


def test_a_damaged_outline_gives_wrong_edges_of_the_row_and_nothing_worse() -> None:
    csc, times = rows_of([list(range(0, 3 * 10**9, 10**6)), [4, 5], []])
    noise = torch.randint(-(2**15), 2**15, (outline_size(csc),), generator=torch.Generator().manual_seed(1))
    nodes, until = torch.tensor([0, 1, 2]).repeat(300), torch.arange(900) * 10**7
    found = time_ranges(csc, Rising(times, noise.short()), nodes, until, (5, 0)).reshape(-1, 2)
    assert bool(
        (found >= csc.indptr[nodes][:, None]).all() and (found <= csc.indptr[nodes + 1][:, None]).all()
    )
