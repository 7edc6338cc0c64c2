"""Progress of long work as lines on stderr, for logs and pipes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from khop.cli.lines import tell
from khop.graph.progress import ProgressCallback

FIRST_S, NEXT_S = 1.0, 30.0  # tests of other things change them


@contextmanager
def progress_lines(what: str) -> Iterator[ProgressCallback]:
    """Print a line FIRST_S seconds after the start, and then one every NEXT_S seconds, until the end.

    Yields a callback: call it with the current work, the bytes done and all bytes. Short work prints nothing.
    """
    at, ended = _Position(what), threading.Event()

    def watch() -> None:
        begun, pause = monotonic(), FIRST_S
        while not ended.wait(pause):
            tell(at.line(monotonic() - begun))
            pause = NEXT_S

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield at.move
    finally:
        ended.set()
        watcher.join()


class _Position:
    """The last report of some work."""

    def __init__(self, what: str) -> None:
        self._last = (what, 0, 0)

    def move(self, what: str, done: int, total: int) -> None:
        """Remember a report."""
        self._last = (what, min(done, total), total)

    def line(self, seconds: float) -> str:
        """Return the report with an estimate of the time left."""
        what, done, total = self._last
        if not total:
            return what or "working"
        left = f", about {seconds * (total - done) / done:,.0f} s left" if done else ""
        return f"{what}: {100 * done // total} %{left}"
