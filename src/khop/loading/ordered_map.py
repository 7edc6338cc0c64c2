"""Parallel map over threads, with results in order and a limit on the work in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from khop.arguments import whole_number
from khop.errors import Outcome, PeerLost
from khop.kernels.gather import PLACE

Item = TypeVar("Item")
Result = TypeVar("Result")

take_place = PLACE.set  # the item of this thread: disk reads for lower items are served first
POLL_S = 0.5  # interval at which a waiting thread checks that other threads are alive


@dataclass(frozen=True)
class InFlight:
    """Limits on work ahead of the consumer. They do not change results."""

    threads: int = 2
    prefetch: int = 4  # items started and not yet consumed
    prefetch_bytes: int = 1 << 30  # no new item is started while finished, unconsumed results are larger

    def __post_init__(self) -> None:
        for name, value in [*vars(self).items()]:
            object.__setattr__(self, name, whole_number(name, value, 1))


# For chunks of an evaluation: each needs the memory of several batches, and allocating new memory costs
# more time than more prefetching saves.
FEW_IN_FLIGHT = InFlight(prefetch=2)


def ordered_map(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    in_flight: InFlight,
    size_of: Callable[[Result], int],
    cancel: Callable[[], object] = lambda: None,
) -> Generator[Result, None, None]:
    """Compute `map(function, items)` ahead, on threads that start with the first `next`.

    Results come in the order of the items. The size of a result is known only after it is made, so the
    results in progress can exceed `prefetch_bytes`. One item is always allowed. An exception is raised in
    place of its item, with the worker's traceback, and ends the iteration. Closing or dropping the iterator
    waits for the running calls and leaves no thread. `cancel` is called at the end, however the iteration
    ends, before that wait; it may make the running calls end early.
    """
    line = _Line(function, items, in_flight, size_of)
    threads: list[threading.Thread] = []
    try:
        for number in range(min(in_flight.threads, in_flight.prefetch, len(items))):
            thread = threading.Thread(target=line.work, name=f"khop-worker-{number}")
            thread.start()
            threads.append(thread)
        for index in range(len(items)):
            yield line.take(index)
    finally:
        line.close()
        cancel()
        # The garbage collector may run this on a worker. A worker cannot wait for itself, nor for the others,
        # which may wait for a lock that it holds. They end without it.
        if threading.current_thread() not in threads:
            for thread in threads:
                thread.join()


@dataclass(frozen=True)
class _Sized(Generic[Result]):
    result: Result
    num_bytes: int


class _Line(Generic[Item, Result]):
    """State shared by consumer and workers; every field is accessed under the lock of `_changed`."""

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        in_flight: InFlight,
        size_of: Callable[[Result], int],
    ) -> None:
        self._function = function
        self._items = items
        self._in_flight = in_flight
        self._size_of = size_of
        self._changed = threading.Condition()  # its lock is re-entrant: see the garbage collector above
        self._finished: dict[int, Outcome[_Sized[Result]]] = {}
        self._finished_bytes = 0
        self._handed_out = 0
        self._consumed = 0
        self._consumer = threading.current_thread()
        self._closed = False

    def work(self) -> None:
        """Process items until none are left."""
        while (index := self._next_index()) is not None:
            take_place(index)
            self._put(index, Outcome.of(partial(self._sized, index)))

    def take(self, index: int) -> Result:
        """Return the result of one item, or raise its exception."""
        return self._taken(index).given().result

    def close(self) -> None:
        """Do not start more items."""
        with self._changed:
            self._closed = True
            self._finished.clear()
            self._changed.notify_all()

    def _next_index(self) -> int | None:
        with self._changed:
            while not self._closed and self._handed_out < len(self._items):
                if self._has_room():
                    self._handed_out += 1
                    return self._handed_out - 1
                self._changed.wait(POLL_S)
                self._closed = self._closed or self._is_orphaned()
            return None

    def _has_room(self) -> bool:
        count = self._handed_out - self._consumed
        is_full = count >= self._in_flight.prefetch or self._finished_bytes > self._in_flight.prefetch_bytes
        return count == 0 or not is_full

    def _is_orphaned(self) -> bool:
        """Return True if the interpreter exits while the iterator is open: it waits for these threads."""
        return not (self._consumer.is_alive() or threading.main_thread().is_alive())

    def _sized(self, index: int) -> _Sized[Result]:
        result = self._function(self._items[index])
        return _Sized(result, self._size_of(result))

    def _put(self, index: int, outcome: Outcome[_Sized[Result]]) -> None:
        with self._changed:
            if not self._closed:
                self._finished[index] = outcome
                self._finished_bytes += _num_bytes(outcome)
            self._changed.notify_all()

    def _taken(self, index: int) -> Outcome[_Sized[Result]]:
        with self._changed:
            self._consumer = threading.current_thread()
            while index not in self._finished:
                if self._closed:
                    raise PeerLost("the workers ended when the main thread and their last consumer had ended")
                self._changed.wait(POLL_S)
            outcome = self._finished.pop(index)
            self._finished_bytes -= _num_bytes(outcome)
            self._consumed += 1
            self._changed.notify_all()
            return outcome


def _num_bytes(outcome: Outcome[_Sized[Result]]) -> int:
    return 0 if outcome.result is None else outcome.result.num_bytes
