"""Times of edges: the edge's own, its source's, or the later of both.

The frontier of a hop: its edges and its keys.

Places of times in ranges of a sorted array.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.draw_request import time_ranges, time_ranges_reference
from khop.kernels.edge_times import (
    HEAD,
    WINDOW,
    EdgeTimes,
    HopRows,
    Rising,
    later_positions,
    outline,
    outline_reference,
    outline_size,
    whole_numbers,
)
from khop.testing.reference import mix64
from support.draws import rising

TIMES = st.integers(-100, 100)
DTYPES = st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8])


def csc_of(sources: list[int], num_sources: int) -> Csc:
    """One row with an edge from each source."""
    return Csc(torch.tensor([0, len(sources)]), torch.tensor(sources, dtype=torch.int64), num_sources)


@given(
    data=st.lists(st.tuples(st.integers(0, 4), TIMES), max_size=12),
    of_nodes=st.lists(TIMES, min_size=5, max_size=5),
    dtype=DTYPES,
)
def test_the_later_time_counts(data: list[tuple[int, int]], of_nodes: list[int], dtype: torch.dtype) -> None:
    csc = csc_of([source for source, _ in data], 5)
    own, sources = torch.tensor([time for _, time in data], dtype=dtype), torch.tensor(of_nodes, dtype=dtype)
    for times in (EdgeTimes(own), EdgeTimes(None, sources), EdgeTimes(own, sources)):
        times.check(csc)
    assert EdgeTimes(own).of(csc).tolist() == [time for _, time in data]
    assert EdgeTimes(None, sources).of(csc).tolist() == [of_nodes[source] for source, _ in data]
    assert EdgeTimes(own, sources).of(csc).tolist() == [max(of_nodes[s], time) for s, time in data]
    assert EdgeTimes(own, sources).of(csc).dtype == torch.int64


def test_times_that_do_not_fit_the_edges_are_refused() -> None:
    csc = csc_of([0, 1], 2)
    for edges, problem in ((torch.tensor([1]), "int64"), (torch.tensor([1.0, 2.0]), "float32")):
        with pytest.raises(ValueError, match=rf"times of edges are torch.{problem}.*must be whole numbers"):
            EdgeTimes(edges).check(csc)
    with pytest.raises(ValueError, match="neither edges nor sources"):
        EdgeTimes(None).check(csc)


def test_columns_that_no_kernel_reads_become_int64() -> None:
    assert whole_numbers(torch.tensor([1, 2], dtype=torch.int16)).dtype == torch.int16
    assert whole_numbers(torch.tensor([True, False])).tolist() == [1, 0]


CSC = Csc(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1]), 3)
ROWS = HopRows(torch.tensor([2, 0, 2]), DrawKey((1 << 64) - 3), stream=7)
MASK = (1 << 64) - 1


def as_words(keys: list[int]) -> list[list[int]]:
    return [[key & 0xFFFFFFFF, key >> 32] for key in keys]


def test_a_row_draws_from_its_edges_or_from_its_range() -> None:
    begin, end = ROWS.bounds(CSC)
    assert (begin.tolist(), end.tolist()) == ([2, 0, 2], [5, 2, 5])
    begin, end = replace(ROWS, ranges=torch.tensor([3, 5, 0, 0, 2, 4])).bounds(CSC)
    assert (begin.tolist(), end.tolist()) == ([3, 0, 2], [5, 0, 4])


def test_rows_share_the_key_and_trees_have_their_own() -> None:
    assert ROWS.keys().tolist() == as_words([MASK - 2] * 3)
    trees = replace(ROWS, tree=torch.tensor([0, 5, 0]))
    assert trees.keys().tolist() == as_words([mix64((MASK - 2) ^ mix64(tree)) for tree in (0, 5, 0)])


def test_counters_have_the_original_ids() -> None:
    assert ROWS.ids().tolist() == [2, 0, 2]
    assert replace(ROWS, original_ids=torch.tensor([10, 11, 12])).ids().tolist() == [12, 10, 12]


def test_a_node_that_is_no_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"frontier node 3: not in \[0, 3\)"):
        replace(ROWS, nodes=torch.tensor([0, 3])).bounds(CSC)


@given(st.lists(st.lists(st.integers(-3, 3), max_size=9), min_size=1, max_size=6), st.data())
def test_it_finds_the_first_later_time_of_each_range(rows: list[list[int]], data: st.DataObject) -> None:
    times = np.array([time for row in rows for time in sorted(row)], np.int64)
    ends = np.cumsum([len(row) for row in rows])
    wanted = np.array(
        data.draw(st.lists(st.integers(-4, 4), min_size=len(rows), max_size=len(rows))), np.int64
    )
    found = later_positions(lambda at: times[at], ends - [len(row) for row in rows], ends, wanted)
    expected = [
        end - len(row) + int(np.searchsorted(np.sort(row), time, side="right"))
        for row, end, time in zip(rows, ends, wanted, strict=True)
    ]
    assert found.tolist() == expected


def test_a_log_takes_one_look_at_each_range() -> None:
    looks = []

    def time_at(positions: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        looks.append(len(positions))
        return positions

    later_positions(time_at, np.array([0, 10]), np.array([10, 20]), np.array([99, 99]))
    assert looks == [2]


LOW, HIGH = -(2**63), 2**63 - 1
VALUES = st.integers(-9, 9) | st.integers(0, 2**18) | st.integers(LOW, HIGH) | st.sampled_from([LOW, HIGH])
RISING_ROWS = st.lists(st.lists(VALUES, max_size=90).map(sorted), min_size=1, max_size=5)


def rows_of(rows: list[list[int]]) -> tuple[Csc, torch.Tensor]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
    return Csc(indptr, torch.zeros(values.numel(), dtype=torch.int32)), values


@given(rows=RISING_ROWS, threads=st.integers(1, 3))
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
