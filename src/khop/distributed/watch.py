"""What every rank tells the others about itself, so that a wait that fails can say for whom it waited."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from khop.distributed.torch_types import Store

BEAT_S = 0.4  # how often a rank says that it is alive
SILENT_BEATS = 4  # who says nothing while another rank says so often that it is alive is gone
GRACE_S = 6.0  # for a rank to end by itself when the group has broken: to write a checkpoint, to say why
EVALUATING = "evaluating"  # the stage of khop.evaluate, which all ranks have to call
_LATEST_BEAT_S = 2.0  # of a rank whose thread has ended, nothing is waited for
BROKEN = 70  # the exit code of a rank that its own watch had to end


@dataclass(frozen=True)
class Status:
    """Where a rank stands."""

    host: str
    stage: str = "starting"
    epoch: int = 0
    step: int = 0
    count: int = 0  # stages so far; all ranks go through the same ones
    beat: int = 0

    @property
    def place(self) -> str:
        """In words."""
        return self.stage if self.step < 0 else f"{self.stage} in epoch {self.epoch}, step {self.step}"


class Watch:
    """Tells a store twice a second where this rank stands, and ends a rank that outlives its broken group.

    A thread does it, so the rank itself may be stuck anywhere. Reading what others told costs nothing until
    something fails.
    """

    def __init__(self, telling: Store, asking: Store, rank: int, world_size: int, host: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = telling  # the thread's
        self._asking = asking  # for reports
        self._status = Status(host)
        self._beats = 0  # apart: the status is set by the rank, this by the thread
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="khop-watch", daemon=True)
        self._publish()

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def close(self) -> None:
        """Stop telling; afterwards nobody ends this rank."""
        self._closed.set()
        self._thread.join(timeout=5.0)

    def at(self, stage: str, epoch: int = 0, step: int = -1) -> None:
        """This rank enters a stage."""
        before = self._status
        self._status = replace(before, stage=stage, epoch=epoch, step=step, count=before.count + 1)

    def failed(self, sentence: str) -> None:
        """This rank ends with an error of its own: the others are told which."""
        self._say("failed", sentence)
        self.give_up()

    def give_up(self) -> None:
        """The group is broken: every rank has to end."""
        self._say("broken", str(self.rank))

    def report(self, deadline_s: float) -> str:
        """One sentence on who is missing and who waited where, once a wait of this rank has failed."""
        self._publish()
        self._listen(2)  # for others to tell why they end
        errors = self._told("failed")
        if errors:
            told = self._statuses()
            return "; ".join(
                f"rank {rank} (host {told[rank].host}) failed {told[rank].place}: {error}"
                for rank, error in errors.items()
            )
        before = self._statuses()
        self._listen(SILENT_BEATS)
        now = self._statuses()
        silent = [
            rank
            for rank in now
            if rank != self.rank and rank in before and now[rank].beat == before[rank].beat
        ]
        if silent:
            return f"{_who(silent, now)} does not answer any more; {self._waiting(silent, now)}"
        return self._late(now, deadline_s)

    def _late(self, now: dict[int, Status], deadline_s: float) -> str:
        evaluating = [rank for rank, status in now.items() if status.stage.startswith(EVALUATING)]
        others = [rank for rank in now if rank not in evaluating]
        if evaluating and others:
            return (
                f"rank {others[0]} is {now[others[0]].place}, rank {evaluating[0]} called evaluate() and "
                f"waited {deadline_s:g} s: it is collective, call it on every rank (not under `if rank == 0`)"
            )
        least = min(status.count for status in now.values())
        late = [rank for rank, status in now.items() if status.count == least and rank != self.rank]
        return f"{_who(late, now)} did not come within {deadline_s:g} s; {self._waiting(late, now)}"

    def _waiting(self, missing: Iterable[int], now: dict[int, Status]) -> str:
        seen = ", ".join(f"last seen {now[rank].place}" for rank in missing)
        others = [rank for rank in now if rank not in set(missing)]
        places = dict.fromkeys(now[rank].place for rank in others)
        return f"{seen}. {_ranks(others)} waited {' and '.join(places)}"

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                self._publish()
                if not self._store.check(["broken"]):
                    continue
                why = "the group has broken"
            except RuntimeError:  # the store is gone, and with it whoever started this process
                why = "the process that started the ranks is gone"
            if not self._closed.wait(GRACE_S):
                print(
                    f"khop: rank {self.rank} was still {self._status.place}: {why}",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(BROKEN)

    def _listen(self, beats: int) -> None:
        """Wait for so many beats of this rank's own: where they come late, those of others may as well."""
        heard, end = self._beats + beats, time.monotonic() + beats * _LATEST_BEAT_S
        while self._beats < heard and time.monotonic() < end:
            time.sleep(BEAT_S / 4)

    def _publish(self) -> None:
        self._beats += 1
        status = replace(self._status, beat=self._beats)
        self._store.set(f"status/{self.rank}", json.dumps(asdict(status)))

    def _say(self, what: str, text: str) -> None:
        try:
            self._asking.set(f"{what}/{self.rank}", text)
            self._asking.set("broken", str(self.rank))
        except RuntimeError:  # the store has gone first; there is nobody left to tell
            return

    def _told(self, what: str) -> dict[int, str]:
        """What ranks have said; of a store that is gone, nothing."""
        keys = {rank: f"{what}/{rank}" for rank in range(self.world_size)}
        try:
            return {
                rank: self._asking.get(key).decode()
                for rank, key in keys.items()
                if self._asking.check([key])
            }
        except RuntimeError:
            return {}

    def _statuses(self) -> dict[int, Status]:
        found = {rank: Status(**json.loads(text)) for rank, text in self._told("status").items()}
        return found or {self.rank: self._status}


def _who(ranks: list[int], now: dict[int, Status]) -> str:
    return ", ".join(f"rank {rank} (host {now[rank].host})" for rank in ranks) or "a rank"


def _ranks(ranks: list[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"
