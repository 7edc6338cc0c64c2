"""khop, one rank of which stands still at one moment of a run until a test lets it go on.

    python -m network.gated train run.toml ...

KHOP_HOLD names the rank, the epoch, the step, and the folder where the rank says that it is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gate import wait_until
from khop.cli.start import run

HOLD = "KHOP_HOLD"


@dataclass(frozen=True)
class Hold:
    """Where a rank is held."""

    folder: Path
    rank: int
    epoch: int
    step: int

    @classmethod
    def of_this_process(cls) -> Hold:
        """The one that the test has named in this process's environment."""
        rank, epoch, step, folder = os.environ[HOLD].split(maxsplit=3)
        return cls(Path(folder), int(rank), int(epoch), int(step))

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {HOLD: f"{self.rank} {self.epoch} {self.step} {self.folder}"}

    @property
    def is_released(self) -> bool:
        """Whether nobody is held any more."""
        return (self.folder / "released").exists()

    def stand(self) -> None:
        """Say that this rank is here, and stay."""
        written = self.folder / "held.part"
        written.write_text(str(os.getpid()))
        written.rename(self.folder / "held")
        wait_until(lambda: self.is_released)

    def wait(self, *running: subprocess.Popen[str]) -> int:
        """The process that is held, of a run that these started."""
        held = self.folder / "held"

        def is_here() -> bool:
            assert all(process.poll() is None for process in running), "the run has ended before"
            return held.exists()

        wait_until(is_here)
        return int(held.read_text())

    def release(self) -> None:
        """Let it and all that come later go on."""
        (self.folder / "released").touch()


def hold_one() -> None:
    """Make this process stand still if it is the rank, once it is there."""
    from khop.distributed.watch import Watch  # loads torch, which comes after what khop.cli.start does

    hold = Hold.of_this_process()
    come_to = Watch.at

    def at(watch: Watch, stage: str, epoch: int = 0, step: int = -1) -> None:
        come_to(watch, stage, epoch, step)
        if (watch.rank, epoch, step) == (hold.rank, hold.epoch, hold.step) and not hold.is_released:
            watch._tell()  # so that all know where this rank stands, whatever happens to it now
            hold.stand()

    Watch.at = at  # type: ignore[method-assign]


if __name__ == "__mp_main__":  # a rank that the command has spawned
    hold_one()
if __name__ == "__main__":
    hold_one()
    run(sys.argv[1:])
