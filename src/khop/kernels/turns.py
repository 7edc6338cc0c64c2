"""Turns at a resource that serves one thread best, such as a disk: work that is needed first goes first."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PLACE: ContextVar[int] = ContextVar("PLACE", default=0)
"""Position of the work of this thread in the order of use; the lowest goes first."""


class Turns:
    """One thread at a time; of those that wait, the one with the lowest PLACE."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[int] = []  # places, ascending
        self._is_taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and keep it until the block ends."""
        self._begin(PLACE.get())
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _begin(self, place: int) -> None:
        with self._changed:
            insort(self._waiting, place)
            try:
                self._changed.wait_for(lambda: not self._is_taken and self._waiting[0] == place)
                self._is_taken = True
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()  # after Ctrl-C, another one may be the first
