"""Steps of lanes: taken in order, begun no further ahead than allowed, ended where all ranks agree."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from khop.exchange.lanes import LaneWork
from khop.exchange.peers import open_peers
from khop.runtime.group import ALONE

LANES = 3


def squared(item: int) -> int:
    if item < 0:
        raise KeyError(f"item {item}")
    return item * item


def work_of(items: list[int], ahead: int = 4) -> LaneWork[int, int]:
    return LaneWork(squared, items, ahead, lambda item: (0, abs(item)))


@contextmanager
def running(work: LaneWork[int, int]) -> Iterator[None]:
    """The lanes at work; they have to end by themselves."""
    threads = [
        threading.Thread(target=work.run, args=(lane, LANES, open_peers(ALONE))) for lane in range(LANES)
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_results_are_taken_in_order() -> None:
    work = work_of(list(range(20)))
    with running(work):
        assert [work.take(index) for index in range(20)] == [n * n for n in range(20)]
    assert work.error is None
    assert work.hold() is None


def test_lanes_begin_no_step_further_ahead_and_end_where_it_is_agreed() -> None:
    work = work_of(list(range(20)), ahead=2)
    with running(work):
        assert work.take(0) == 0
        begun = work.hold()
        assert begun is not None
        assert 1 <= begun <= 3
        work.end_after(begun + 1)


def test_an_error_comes_in_place_of_its_item() -> None:
    work = work_of([1, -2, 3, 4])
    with running(work):
        assert work.take(0) == 1
        with pytest.raises(KeyError, match="item -2"):
            work.take(1)
        work.give_up()
    assert isinstance(work.error, KeyError)


def test_lanes_that_are_given_up_end_at_once() -> None:
    work = work_of(list(range(1000)), ahead=1)
    with running(work):
        work.give_up(OSError("gone"))
        assert work.is_unwanted()
    assert isinstance(work.error, OSError)
