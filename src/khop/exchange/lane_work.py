"""State shared by the lanes of one map and its consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from khop.exchange.peers import Peers
from khop.loading.ordered_map import POLL_S
from khop.loading.outcome import Outcome

Item = TypeVar("Item")
Result = TypeVar("Result")
Place = Callable[[Item], tuple[int, int]]  # epoch and step of an item, for messages to other ranks


class LaneWork(Generic[Item, Result]):
    """Items processed by lanes, one step each, and the progress of lanes and consumer.

    Fields change only under the lock of `_changed`.
    """

    def __init__(
        self, function: Callable[[Item], Result], items: Sequence[Item], ahead: int, place: Place[Item]
    ) -> None:
        self._function = function
        self._items = items
        self._ahead = ahead
        self._place = place
        self._changed = threading.Condition()
        self._finished: dict[int, Outcome[Result]] = {}
        self._begun = 0  # steps up to the last one that any lane has begun
        self._taken = 0
        self._is_closed = False  # results are discarded from now on
        self._end: int | None = None  # lanes stop before this step; None until all ranks agree on it
        self._is_given_up = False
        self.error: BaseException | None = None  # the first error that ended a lane

    def run(self, lane: int, lanes: int, peers: Peers) -> None:
        """Make the steps of one lane, until all are made or one fails.

        A failed step ends the lane, as its exchanges are out of step with other ranks from then on.
        """
        for index in range(lane, len(self._items), lanes):
            if not self._begins(index):
                return
            item = self._items[index]
            peers.begin(*self._place(item), self.is_unwanted)
            outcome = Outcome.of(partial(self._function, item))
            self._put(index, outcome)
            if outcome.error is not None:
                return

    def take(self, index: int) -> Result:
        """Return the result of a step, or raise its exception."""
        with self._changed:
            while index not in self._finished:
                self._changed.wait(POLL_S)
            self._taken = index + 1
            self._changed.notify_all()
            outcome = self._finished.pop(index)
        return outcome.given()

    def hold(self) -> int | None:
        """Discard results from now on, and begin no step until `end_after`.

        Returns the number of steps begun, or None if all are taken: then the lanes end by themselves.
        """
        with self._changed:
            self._is_closed = True
            self._finished.clear()
            return None if self._taken == len(self._items) else self._begun

    def end_after(self, count: int) -> None:
        """Make the first `count` steps, which some rank has begun, and no more."""
        with self._changed:
            self._end = count
            self._changed.notify_all()

    def give_up(self, error: BaseException | None = None) -> None:
        """End the lanes at once, wherever they are."""
        with self._changed:
            self.error = self.error or error
            self._is_given_up = True
            self._changed.notify_all()

    def is_unwanted(self) -> bool:
        """Return True after `give_up`, or if the interpreter is ending and waits for this thread."""
        return self._is_given_up or not threading.main_thread().is_alive()

    def _begins(self, index: int) -> bool:
        """Wait until the step may begin (True), or until it is known that it never will (False)."""
        with self._changed:
            while not self.is_unwanted():
                may_begin = self._may_begin(index)
                if may_begin is not None:
                    self._begun = max(self._begun, index + 1) if may_begin else self._begun
                    return may_begin
                self._changed.wait(POLL_S)
            return False

    def _may_begin(self, index: int) -> bool | None:
        """Return whether the step may begin; None if that is not known yet."""
        if self._is_closed:
            return None if self._end is None else index < self._end
        return True if index < self._taken + self._ahead else None

    def _put(self, index: int, outcome: Outcome[Result]) -> None:
        with self._changed:
            self.error = self.error or outcome.error
            if not self._is_closed:
                self._finished[index] = outcome
            self._changed.notify_all()
