"""Progress of long work, reported to a callback, and sizes for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ProgressCallback = Callable[[str, int, int], None]  # (current item, bytes done, bytes in all)


def in_bytes(size: float) -> str:
    """Format a size for people: 12.3 GB; sizes below 0.1 GB in MB."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return f"{size / one:.3g} {unit}" if size < 999.5 * one else f"{size / one:,.0f} {unit}"
    return f"{size:.0f} bytes"


@dataclass
class Meter:
    """Byte counter that reports to a callback, never more than the total: it may be an estimate."""

    total: int
    notice: ProgressCallback | None = None
    done: int = 0

    def at(self, what: str, more: int = 0) -> None:
        """Add `more` bytes and report `what` as the current item."""
        self.done += more
        if self.notice is not None:
            self.notice(what, min(self.done, self.total), self.total)
