"""How far a long piece of work has come, told to whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ProgressCallback = Callable[[str, int, int], None]  # (what is being worked on, bytes done, bytes in all)


@dataclass
class Meter:
    """Counts bytes and passes them on."""

    total: int
    notice: ProgressCallback | None = None
    done: int = 0

    def at(self, what: str, more: int = 0) -> None:
        """`more` bytes are done, now working on `what`."""
        self.done += more
        if self.notice is not None:
            self.notice(what, self.done, self.total)
