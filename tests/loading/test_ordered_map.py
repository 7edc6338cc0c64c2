"""Results in order, no more in flight than allowed, and no thread left behind, however the iteration ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.gather import PLACE
from khop.loading.ordered_map import InFlight, ordered_map
from support.late_consumers import LATE, LEFT_OPEN, OUTLIVES, printed

DEADLINE_S = 60.0


def no_size(result: object) -> int:
    return 0


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("khop-worker")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@given(
    count=st.integers(0, 30),
    threads=st.integers(1, 5),
    items=st.integers(1, 6),
    max_bytes=st.integers(1, 20),
    pauses=st.lists(st.integers(0, 2), min_size=1, max_size=7),
)
def test_results_come_in_the_order_of_the_items(
    count: int, threads: int, items: int, max_bytes: int, pauses: list[int]
) -> None:
    def slow_square(item: int) -> int:
        time.sleep(pauses[item % len(pauses)] / 5000)
        return item * item

    in_flight = InFlight(threads, items, max_bytes)
    results = ordered_map(slow_square, range(count), in_flight, size_of=lambda result: result % 7)
    assert list(results) == [item * item for item in range(count)]


def test_each_item_has_its_place_at_a_disk() -> None:
    found = ordered_map(lambda _: PLACE.get(), range(9), InFlight(threads=3), no_size)
    assert list(found) == list(range(9))


def test_the_items_in_flight_are_bounded() -> None:
    begun: list[int] = []
    results = ordered_map(begun.append, range(20), InFlight(threads=3, prefetch=5), no_size)
    next(results)
    wait_until(lambda: len(begun) == 6)  # one consumed, five in flight
    time.sleep(0.05)
    assert len(begun) == 6
    next(results)
    wait_until(lambda: len(begun) == 7)
    results.close()
    assert begun == sorted(begun)


def test_the_bytes_of_unconsumed_results_are_bounded() -> None:
    begun: list[int] = []
    results = ordered_map(begun.append, range(20), InFlight(1, 10, prefetch_bytes=100), size_of=lambda _: 60)
    next(results)
    wait_until(lambda: len(begun) == 3)  # 60 bytes let another one begin, 120 do not
    time.sleep(0.05)
    assert len(begun) == 3
    results.close()


def test_one_item_is_always_allowed() -> None:
    results = ordered_map(str, range(4), InFlight(2, 3, prefetch_bytes=1), size_of=lambda _: 1 << 40)
    assert list(results) == ["0", "1", "2", "3"]


def test_the_threads_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=DEADLINE_S)
    assert len(list(ordered_map(lambda _: meeting.wait(), range(6), InFlight(3, 3), no_size))) == 6


def test_an_exception_comes_in_its_place_with_the_workers_traceback() -> None:
    def fails_at_three(item: int) -> int:
        if item == 3:
            raise KeyError("the third")
        return item

    results = ordered_map(fails_at_three, range(10), InFlight(2, 6), no_size)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="the third") as caught:
        next(results)
    assert "fails_at_three" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_an_exception_of_the_measure_reaches_the_consumer() -> None:
    with pytest.raises(ZeroDivisionError):
        next(ordered_map(str, range(3), InFlight(), size_of=lambda _: 1 // 0))


class Precious:
    """Something whose end can be watched."""

    alive = 0

    def __init__(self) -> None:
        Precious.alive += 1

    def __del__(self) -> None:
        Precious.alive -= 1


def test_a_consumed_result_has_no_other_reference() -> None:
    results = ordered_map(lambda _: Precious(), range(3), InFlight(1, 1), no_size)
    next(results)
    wait_until(lambda: Precious.alive == 1)  # the second one, in flight
    next(results)
    wait_until(lambda: Precious.alive == 1)
    results.close()
    assert Precious.alive == 0


def test_a_handled_exception_has_no_other_reference() -> None:
    def fails(item: int) -> None:
        precious = Precious()
        raise ValueError(f"{item} with {precious}")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="0 with"):
            next(ordered_map(fails, range(1), InFlight(), no_size))
        assert Precious.alive == 0
    finally:
        gc.enable()


def close(results: Generator[int, None, None]) -> None:
    results.close()


def drop(results: Generator[int, None, None]) -> None:
    del results


def throw(results: Generator[int, None, None]) -> None:
    with pytest.raises(RuntimeError, match="training failed"):
        results.throw(RuntimeError("training failed"))


@pytest.mark.parametrize("leave", [close, drop, throw])
@pytest.mark.parametrize("received", [0, 1, 5])
def test_leaving_early_leaves_no_thread(
    leave: Callable[[Generator[int, None, None]], None], received: int
) -> None:
    def results() -> Generator[int, None, None]:
        iterator = ordered_map(abs, range(1000), InFlight(3, 6), no_size)
        for _ in range(received):
            next(iterator)
        return iterator

    leave(results())
    assert workers() == []


def test_breaking_out_of_the_loop_leaves_no_thread() -> None:
    for result in ordered_map(abs, range(1000), InFlight(2, 4), no_size):
        if result == 3:
            break
    assert workers() == []


def test_an_iterator_in_a_cycle_ends_with_the_cycle() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.me = holder
    holder.results = ordered_map(abs, range(1000), InFlight(2, 4), no_size)
    next(holder.results)
    del holder
    gc.collect()
    assert workers() == []


def test_a_worker_may_be_the_one_that_collects_the_iterator() -> None:
    class Holder:
        pass

    dropped = threading.Event()

    def collects(item: int) -> int:
        if item == 1:
            assert dropped.wait(DEADLINE_S)
            gc.collect()
        return item

    gc.disable()
    try:
        holder = Holder()
        holder.me = holder
        holder.results = ordered_map(collects, range(1000), InFlight(1, 4), no_size)
        next(holder.results)
        del holder
        dropped.set()
        wait_until(lambda: workers() == [])
    finally:
        gc.enable()


def test_an_iterator_that_was_never_started_has_no_threads() -> None:
    results = ordered_map(abs, range(1000), InFlight(2, 4), no_size)
    assert workers() == []
    del results


def test_where_a_thread_cannot_start_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuses_the_third(thread: threading.Thread) -> None:
        if thread.name == "khop-worker-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses_the_third)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(ordered_map(abs, range(10), InFlight(4, 4), no_size))
    assert workers() == []


def test_no_items_need_no_thread() -> None:
    assert list(ordered_map(abs, [], InFlight(), no_size)) == []


def test_ctrl_c_ends_a_wait_for_a_slow_worker() -> None:
    begun = threading.Event()
    may_end = threading.Event()

    def waits(item: int) -> int:
        begun.set()
        may_end.wait(DEADLINE_S)
        return item

    def interrupts() -> None:
        begun.wait(DEADLINE_S)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        may_end.set()

    interrupter = threading.Thread(target=interrupts)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        next(ordered_map(waits, range(3), InFlight(1, 1), no_size))
    interrupter.join()
    assert workers() == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 1, 1), "threads 0: must be a whole number, 1 or more"),
        ((1, 2.5, 1), "prefetch 2.5: must be a whole number"),
        ((1, 1, -1), "prefetch_bytes -1"),
        ((True, 1, 1), "threads True"),
    ],
)
def test_a_bound_that_is_no_count_is_an_error(values: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InFlight(*values)


RESULTS = """
    from khop.loading.ordered_map import InFlight, ordered_map

    THREADS = "khop-worker"

    def results(count, prefetch):
        return ordered_map(abs, range(count), InFlight(2, prefetch), lambda _: 0)
"""


@pytest.mark.long
def test_a_script_that_leaves_an_iterator_open_ends() -> None:
    assert printed(RESULTS, LEFT_OPEN) == "the end"


@pytest.mark.long
def test_a_consumer_that_outlives_the_main_thread_continues() -> None:
    assert printed(RESULTS, OUTLIVES) == "all of 8"


def test_a_consumer_after_the_end_gets_an_error() -> None:
    assert "workers ended" in printed(RESULTS, LATE)
