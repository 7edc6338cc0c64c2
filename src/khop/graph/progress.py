"""Progress of long work, reported to a callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ProgressCallback = Callable[[str, int, int], None]  # (current item, bytes done, bytes in all)


@dataclass
class Meter:
    """Byte counter that reports to a callback."""

    total: int
    notice: ProgressCallback | None = None
    done: int = 0

    def at(self, what: str, more: int = 0) -> None:
        """Add `more` bytes and report `what` as the current item."""
        self.done += more
        if self.notice is not None:
            self.notice(what, self.done, self.total)
