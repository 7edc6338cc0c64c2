"""A Python thread that counts beside native calls."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ticker:
    """It offers the GIL after every hundred ticks."""

    def __init__(self) -> None:
        self.ticks = 0
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            self.ticks += 1
            if self.ticks % 100 == 0:
                time.sleep(0)

    def ticks_beside(self, call: Callable[[], object]) -> int:
        """How often it ticked in the meantime."""
        before = self.ticks
        call()
        return self.ticks - before


@contextmanager
def ticking() -> Iterator[Ticker]:
    """While it runs, no thread has to give up the GIL unless it offers it itself."""
    interval = sys.getswitchinterval()
    ticker = Ticker()
    thread = threading.Thread(target=ticker.run)
    sys.setswitchinterval(100.0)
    thread.start()
    try:
        yield ticker
    finally:
        ticker.stopping = True
        sys.setswitchinterval(interval)
        thread.join()
