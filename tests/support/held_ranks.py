"""khop, one rank of which stands still at one moment of a run until a test lets it go on.

    python -m support.held_ranks train run.toml ...

KHOP_HOLD names the rank, the moment, and the folder where the rank says that it is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from khop.cli.start import run
from support.gate import wait_until

if TYPE_CHECKING:
    from torch import Tensor

HOLD = "KHOP_HOLD"


class Moment(StrEnum):
    """Of a step, or of the evaluation after an epoch's last one."""

    COMES = "coming"  # the rank comes to the step
    EXCHANGES = "exchanging"  # a lane asks other ranks for what the step's batch needs of theirs
    COMPUTES = "computing"  # a lane asks for what a layer of the evaluation needs


@dataclass(frozen=True)
class Hold:
    """Where a rank is held."""

    folder: Path
    rank: int
    epoch: int
    step: int
    moment: Moment = Moment.COMES

    @classmethod
    def of_this_process(cls) -> Hold:
        """The one that the test has named in this process's environment."""
        rank, epoch, step, moment, folder = os.environ[HOLD].split(maxsplit=4)
        return cls(Path(folder), int(rank), int(epoch), int(step), Moment(moment))

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {HOLD: f"{self.rank} {self.epoch} {self.step} {self.moment} {self.folder}"}

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
    hold = Hold.of_this_process()
    if hold.moment is Moment.COMES:
        hold_who_comes(hold)
    else:
        hold_who_exchanges(hold)


def hold_who_comes(hold: Hold) -> None:
    """Where the rank says that it comes to the step."""
    from khop.distributed.processes.watch import (
        Watch,  # loads torch, which comes after what khop.cli.start does
    )

    come_to = Watch.at

    def at(watch: Watch, stage: str, epoch: int = 0, step: int = -1) -> None:
        come_to(watch, stage, epoch, step)
        if (watch.rank, epoch, step) == (hold.rank, hold.epoch, hold.step) and not hold.is_released:
            watch.heartbeat.send()  # so that all know where this rank stands, whatever happens to it now
            hold.stand()

    Watch.at = at  # type: ignore[method-assign]


def hold_who_exchanges(hold: Hold) -> None:
    """Within an exchange that others wait for, when the rank itself has come to where it waits for it."""
    from khop.distributed.exchange.peers import Message, Peers
    from khop.distributed.processes.watch import Watch

    exchange = Peers.exchange

    def is_due(peers: Peers, watch: Watch) -> bool:
        if hold.moment is Moment.EXCHANGES:
            return peers._place == hold.epoch << 32 | hold.step
        return watch.heartbeat.status.stage.startswith("computing layer")

    def exchanged(peers: Peers, payloads: Sequence[Tensor], message: Message, limit: int) -> list[Tensor]:
        watch = peers._group.watch
        if watch is not None and watch.rank == hold.rank and not hold.is_released and is_due(peers, watch):
            wait_until(
                lambda: (watch.heartbeat.status.epoch, watch.heartbeat.status.step) == (hold.epoch, hold.step)
            )
            watch.heartbeat.send()
            hold.stand()
        return exchange(peers, payloads, message, limit)

    Peers.exchange = exchanged  # type: ignore[method-assign]


if __name__ == "__mp_main__":  # a rank that the command has spawned
    hold_one()
if __name__ == "__main__":
    hold_one()
    run(sys.argv[1:])
