"""A thread that ends calls whose other side is silent, or which are no longer wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

_POLL_S = 0.1  # how often stop events are looked at


class End(StrEnum):
    """Reason why a call was ended."""

    TIMED_OUT = "timed-out"
    STOPPED = "stopped"


@dataclass(eq=False)
class Call:
    """One call that waits for its other side."""

    cancel: Callable[[], None]
    silence_s: float
    stop: threading.Event | None
    last: float
    ended: End | None = None

    def heard(self) -> None:
        """State that the other side gave a heartbeat."""
        self.last = time.monotonic()

    def due(self, now: float) -> End | None:
        """Return why the call has to end, if it has to."""
        if self.stop is not None and self.stop.is_set():
            return End.STOPPED
        return End.TIMED_OUT if now - self.last > self.silence_s else None


class CallTimeouts:
    """Watches calls from one thread, which lives while there are calls."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[Call] = set()
        self._runs = False

    @contextmanager
    def watching(
        self, cancel: Callable[[], None], silence_s: float, stop: threading.Event | None
    ) -> Iterator[Call]:
        """Call `cancel` from another thread once `heard` was not called for `silence_s`, or `stop` is set."""
        call = Call(cancel, silence_s, stop, time.monotonic())
        with self._changed:
            self._calls.add(call)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="khop-silence", daemon=True).start()
        try:
            yield call
        finally:
            with self._changed:
                self._calls.discard(call)

    def _run(self) -> None:
        idle = 0
        while True:
            with self._changed:
                idle = 0 if self._calls else idle + 1
                if idle > 10:
                    self._runs = False
                    return
                self._changed.wait(_POLL_S)
                now = time.monotonic()
                due = [(call, end) for call in self._calls if call.ended is None and (end := call.due(now))]
                for call, end in due:
                    call.ended = end
            for call, _ in due:
                with suppress(Exception):  # the other calls need this thread, whatever became of this one
                    call.cancel()
