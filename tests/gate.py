"""A point at which processes stand until the test that started them has done with them what it wants.

Who is to be killed or interrupted in the middle of its work stands at a gate meanwhile, so that no machine is
too fast or too slow for the test: nothing goes on before the signal is sent.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "KHOP_TEST_GATE"
WAIT_S = 120.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Gate:
    """A folder in which every process that came to the gate has a file; shut while it has no file `open`."""

    folder: Path

    @classmethod
    def shut(cls, folder: Path) -> Gate:
        """A new one, at which nobody stands yet."""
        folder.mkdir()
        return cls(folder.resolve())

    @classmethod
    def of_this_process(cls) -> Gate:
        """The one that the test has named in this process's environment."""
        return cls(Path(os.environ[VARIABLE]))

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {VARIABLE: str(self.folder)}

    def open(self) -> None:
        """Let all go on, and nobody stand here any more."""
        (self.folder / "open").touch()

    def stand(self) -> None:
        """Stay until the gate is open; an interrupt is raised here."""
        (self.folder / str(os.getpid())).touch()
        end = time.monotonic() + WAIT_S
        while not (self.folder / "open").exists():
            assert time.monotonic() < end, "nobody opens the gate"
            time.sleep(_POLL_S)

    def wait_for(self, count: int, started: subprocess.Popen[str]) -> list[int]:
        """The processes that stand here, once there are `count`; `started` is the one that the test began."""
        end = time.monotonic() + WAIT_S
        while len(here := [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]) < count:
            assert started.poll() is None, "the process has ended before it came to the gate"
            assert time.monotonic() < end, f"{len(here)} of {count} processes have come to the gate"
            time.sleep(_POLL_S)
        return here
