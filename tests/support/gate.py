"""A point at which processes stand until the test that started them has done with them what it wants.

Who is to be killed or interrupted in the middle of its work stands at a gate meanwhile, so that no machine is
too fast or too slow for the test: nothing goes on before the signal is sent.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import current_process
from pathlib import Path

WAIT_S = 240.0  # for what comes on any machine, unless something is broken
KILLS = "KHOP_TEST_KILLS"  # names a folder of killed_khop's
_FOLDER, _POINT = "KHOP_TEST_GATE", "KHOP_TEST_POINT"
_POLL_S = 0.01


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, for as long as a slow machine may need."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class Gate:
    """A folder in which every process that stands at the gate has a file.

    It is behind a point of the work, which a process passes before it stands: "update 12" is its twelfth
    update, "chunk 1" its first chunk of an inference, brought to the disk. `gated_khop.POINTS` lists them.
    """

    folder: Path
    point: str

    @classmethod
    def shut(cls, folder: Path, point: str) -> Gate:
        """A new one, at which nobody stands yet."""
        folder.mkdir()
        return cls(folder.resolve(), point)

    @classmethod
    def of_this_process(cls) -> Gate:
        """The one that the test has named in this process's environment."""
        return cls(Path(os.environ[_FOLDER]), os.environ[_POINT])

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {_FOLDER: str(self.folder), _POINT: self.point}

    def stand(self) -> None:
        """Stay until a signal ends that."""
        atexit.register((self.folder / f"{os.getpid()}.left").touch)
        (self.folder / f"{os.getpid()}.name").write_text(current_process().name)  # as "rank 1"
        (self.folder / str(os.getpid())).touch()  # last: from now on a signal may come
        wait_until(lambda: False)

    def wait_for(self, count: int, started: subprocess.Popen[str]) -> list[int]:
        """The processes that stand here, by rank, once there are `count`; `started` is that of the test."""

        def are_here() -> bool:
            assert started.poll() is None, "the process has ended before it came to the gate"
            return len(self._names("")) == count

        wait_until(are_here)
        return self._names("")

    def left(self) -> list[int]:
        """Those of them whose interpreter has come to its end: nobody has killed them."""
        return self._names(".left")

    def _names(self, suffix: str) -> list[int]:
        found = [path for path in self.folder.iterdir() if path.suffix == suffix]
        return [
            int(path.stem) for path in sorted(found, key=lambda path: path.with_suffix(".name").read_text())
        ]
