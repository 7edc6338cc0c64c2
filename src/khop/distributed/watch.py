"""How a rank says where it stands, says for whom it waited when a wait fails, and ends with its group."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace

from khop.distributed.health_board import ANSWER_S, HealthBoard, Status
from khop.distributed.rank_entry import BROKEN

BEAT_S = 0.4  # how often a rank says that it is alive
SILENT_BEATS = 4  # who says nothing while another rank says so often that it is alive is gone
GRACE_S = 6.0  # for a rank to end by itself when the group has broken: to write a checkpoint, to say why
EVALUATING = "evaluating"  # the stage of khop.evaluate, which all ranks have to call
_LATEST_BEAT_S = 2.0  # of a rank whose thread has ended, nothing is waited for


class Watch:
    """Tells the board twice a second where this rank stands, and ends a rank that outlives its broken group.

    Threads do it, so the rank itself may be stuck anywhere. Reading what others told costs nothing until
    something fails.
    """

    def __init__(self, board: HealthBoard, rank: int, host: str, deadline_s: float) -> None:
        self.rank = rank
        self._board = board
        self._status = Status(host)
        self._beats = 0  # apart: the status is set by the rank, this by the thread
        self._broken = ""  # why this rank has to end
        self._failures: list[str] | None = None  # of ranks, as told when all had to end
        self._gone: set[int] = set()  # ranks that did not answer any more
        self._silence_s = deadline_s + 2 * ANSWER_S  # of the store; a wait that fails may speak before
        self._heard_at = time.monotonic()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, name="khop-watch", daemon=True),
            threading.Thread(target=self._guard, name="khop-guard", daemon=True),
        ]
        self._tell()

    def start(self) -> None:
        """Begin to tell."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop telling; afterwards nobody ends this rank."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=ANSWER_S)

    def at(self, stage: str, epoch: int = 0, step: int = -1) -> None:
        """This rank enters a stage."""
        before = self._status
        self._status = replace(before, stage=stage, epoch=epoch, step=step, count=before.count + 1)

    def failed(self, sentence: str) -> None:
        """This rank ends with an error of its own: the others are told which."""
        place = f"rank {self.rank} (host {self._status.host}) failed {self._status.place}"
        self._board.tell_failure(f"{place}: {sentence}")
        self.give_up()

    def give_up(self) -> None:
        """The group is broken: every rank has to end."""
        self._broken = self._broken or "the group has broken"
        self._board.tell_broken()

    def outlast(self) -> None:
        """Stay for a while, until all others have ended: who started this rank may take the store along."""
        end, now = time.monotonic() + GRACE_S / 2, self._board.statuses()
        living = {rank: now[rank] for rank in now.keys() - self._gone - {self.rank}}
        while living and time.monotonic() < end:
            time.sleep(SILENT_BEATS * BEAT_S)
            now = self._board.statuses()
            living = {
                rank: now[rank] for rank in living if rank in now and now[rank].beat != living[rank].beat
            }

    @property
    def is_broken(self) -> bool:
        """Whether some rank has said that all have to end, or the store is gone."""
        return bool(self._broken)

    def report(self, deadline_s: float) -> str:
        """One sentence on who is missing and who waited where, once a wait of this rank has failed."""
        if self._failures:
            return "; ".join(self._failures)
        self._listen(2)  # for others to tell why they end
        failures, before = self._board.failures(), self._board.statuses()
        if failures:
            return "; ".join(failures)
        if not before:
            return self._cut_off()
        self._listen(SILENT_BEATS)
        now = self._board.statuses()
        if not now:
            return self._cut_off()
        now[self.rank] = self._status  # what was told of it last may be half a second old
        silent = [
            rank
            for rank in now
            if rank != self.rank and rank in before and now[rank].beat == before[rank].beat
        ]
        self._gone.update(silent)
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

    def _cut_off(self) -> str:
        own = self._status
        return (
            f"rank {self.rank} (host {own.host}) has lost rank 0's machine ({self._board.where}) while "
            f"{own.place}: the network between them is cut, or it is gone or what started the ranks there"
        )

    def _tell(self) -> None:
        self._beats += 1
        if self._board.beat(self.rank, replace(self._status, beat=self._beats)):
            if self._failures is None:  # at once, while the store is there
                self._failures = self._board.failures()
            self._broken = self._broken or "the group has broken"
        self._heard_at = time.monotonic()

    def _listen(self, beats: int) -> None:
        """Wait for so many beats of this rank's own: where they come late, those of others may as well."""
        heard, end = self._beats + beats, time.monotonic() + beats * _LATEST_BEAT_S
        while self._beats < heard and time.monotonic() < end and not self._closed.is_set():
            time.sleep(BEAT_S / 4)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                self._tell()
            except RuntimeError:  # the store is gone, and with it whoever started this process
                self._broken = "the process that started the ranks is gone"
                return

    def _guard(self) -> None:
        end = float("inf")
        while not self._closed.wait(BEAT_S):
            now = time.monotonic()
            is_cut_off = now - self._heard_at > self._silence_s
            end = min(end, now + GRACE_S) if self._broken or is_cut_off else float("inf")
            if now > end:
                why = "; ".join(self._failures or []) or self._broken or self._cut_off()
                told = f"khop: rank {self.rank} was still {self._status.place}: {why}"
                print(told, file=sys.stderr, flush=True)
                os._exit(BROKEN)


def _who(ranks: list[int], now: dict[int, Status]) -> str:
    return ", ".join(f"rank {rank} (host {now[rank].host})" for rank in ranks) or "a rank"


def _ranks(ranks: list[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"
