"""Places of times in ranges of a sorted array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.later_positions import later_positions


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
