"""Steps of lanes: taken in order, begun no further ahead than allowed, ended where all ranks agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from khop.distributed.exchange.lanes import LaneWork
from khop.distributed.exchange.peers import Peers, open_peers
from khop.distributed.processes.group import ALONE
from khop.kernels.gather import PLACE
from support.late_consumers import LATE, LEFT_OPEN, OUTLIVES, printed

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


def test_a_lane_has_the_place_of_its_step_at_a_disk() -> None:
    work: LaneWork[int, int] = LaneWork(lambda _: PLACE.get(), list(range(20)), 4, lambda item: (0, item))
    with running(work):
        assert [work.take(index) for index in range(20)] == list(range(20))


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


class DamagedItems(Sequence[int]):
    """Items of which the second cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        if index == 1:
            raise OSError("item 1 cannot be read")
        return index


def place_fails_at_one(item: int) -> tuple[int, int]:
    if item == 1:
        raise OSError("no place for item 1")
    return 0, item


def begin_fails(peers: Peers, epoch: int, step: int, is_given_up: Callable[[], bool]) -> None:
    if step == 1:
        raise OSError("step 1 cannot begin")


@pytest.mark.parametrize("where", ["item", "place", "begin"])
def test_an_error_before_the_step_comes_in_its_place_too(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "begin":
        monkeypatch.setattr(Peers, "begin", begin_fails)
    place = place_fails_at_one if where == "place" else lambda item: (0, item)
    work = LaneWork(squared, DamagedItems() if where == "item" else range(4), 4, place)
    with running(work):
        assert work.take(0) == 0
        with pytest.raises(OSError, match="1"):
            work.take(1)
        work.give_up()


RESULTS = """
    from khop.distributed.exchange.lanes import Lanes
    from khop.distributed.processes.group import ALONE

    THREADS = "khop-lane"

    def results(count, prefetch):
        return Lanes(ALONE, 2).map(abs, range(count), prefetch, lambda item: (0, item))
"""


def test_a_script_that_leaves_lanes_open_ends() -> None:
    assert printed(RESULTS, LEFT_OPEN) == "the end"


def test_a_consumer_that_outlives_the_main_thread_continues() -> None:
    assert printed(RESULTS, OUTLIVES) == "all of 8"


def test_a_consumer_after_the_end_gets_an_error() -> None:
    assert "lanes ended" in printed(RESULTS, LATE)
