"""Supervision of a rank: heartbeats, reports of failed waits, and termination with its group.

Ranks publish their stage, and the error that ended them, in the store.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace

from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore

from khop.distributed.processes.rank_entry import BROKEN

__all__ = ["GradBucket", "PrefixStore", "Store", "TCPStore"]


ANSWER_S = 5.0  # longest wait for the store after a failure, on any network
_FAILURES, _BROKEN = "failures", "broken"


@dataclass(frozen=True)
class Status:
    """State of a rank: host, stage, epoch, step and number of heartbeats."""

    host: str
    stage: str = "starting"
    epoch: int = 0
    step: int = 0
    count: int = 0  # stages entered so far; all ranks enter the same ones
    beat: int = 0

    @property
    def place(self) -> str:
        """The stage in words, with epoch and step if there is a step."""
        return self.stage if self.step < 0 else f"{self.stage} in epoch {self.epoch}, step {self.step}"


class HealthBoard:
    """The status and failures of all ranks, kept in the store of the rendezvous.

    If the network to the store is cut, calls to it return neither a value nor an error. Reads, and reports of
    failures, therefore wait ANSWER_S at most; after the first timeout they return nothing immediately. Only
    `beat` may block without limit.
    """

    def __init__(self, telling: Store, asking: Store, world_size: int, where: str) -> None:
        """Take two connections to the store: a blocked call delays all other calls of its connection."""
        self.where = where  # the store, in words
        self._telling = telling  # used by the heartbeat thread alone
        self._asking = asking
        self._world_size = world_size
        self._is_silent = False

    def beat(self, rank: int, status: Status) -> bool:
        """Write the status of this rank, and return True if some rank has declared the group broken.

        RuntimeError if the store is gone.
        """
        self._telling.set(f"status/{rank}", json.dumps(asdict(status)))
        return self._telling.check([_BROKEN])

    def statuses(self) -> dict[int, Status]:
        """Return the status of every rank; {} if the store is gone or unreachable."""
        keys = [f"status/{rank}" for rank in range(self._world_size)]
        texts: list[bytes] = []
        self._within(lambda: texts.extend(self._asking.multi_get(keys)))
        return {rank: Status(**json.loads(text)) for rank, text in enumerate(texts)}

    def failures(self) -> list[str]:
        """Return one sentence for each rank that has reported an error."""
        texts: list[bytes] = []

        def read() -> None:
            count = self._asking.add(_FAILURES, 0)
            texts.extend(self._asking.multi_get([f"{_FAILURES}/{n}" for n in range(1, count + 1)]))

        self._within(read)
        return [text.decode() for text in texts]

    def tell_failure(self, sentence: str) -> None:
        """Report that this rank ends with an error."""

        def write() -> None:
            number = self._asking.add(_FAILURES, 1)
            self._asking.set(f"{_FAILURES}/{number}", sentence)

        self._within(write)

    def tell_broken(self) -> None:
        """Declare the group broken: every rank has to end."""
        self._within(lambda: self._asking.set(_BROKEN, "1"))

    def _within(self, ask: Callable[[], object]) -> None:
        if self._is_silent:
            return
        try:
            self._is_silent = not within(ANSWER_S, ask)
        except RuntimeError:  # the store is gone, so nothing can be read or reported any more
            self._is_silent = True


def within(seconds: float, ask: Callable[[], object]) -> bool:
    """Run a blocking call in a thread; return True if it ended within `seconds`, else leave it running.

    An exception of the call is raised here.
    """
    problems: list[BaseException] = []

    def asking() -> None:
        try:
            ask()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=asking, name="khop-asking", daemon=True)
    thread.start()
    thread.join(seconds)
    for problem in problems:
        raise problem
    return not thread.is_alive()


BEAT_S = 0.4  # interval of a rank's heartbeats
SILENT_BEATS = 4  # heartbeats missed before a rank is declared dead
GRACE_S = 6.0  # for a rank to exit after the group has broken: write a checkpoint, report the error
EVALUATING = "evaluating"  # stage of khop.evaluate, which all ranks have to call
_LATEST_BEAT_S = 2.0  # longest wait for a heartbeat; the heartbeat thread may have ended


class Heartbeat:
    """Status of this rank, sent to the store by a separate thread, because the rank may be blocked.

    The status is sent about twice a second. The status of other ranks is read only after a failure.
    """

    def __init__(self, board: HealthBoard, rank: int, host: str) -> None:
        self.status = Status(host)
        self.broken = ""  # reason why this rank has to end
        self.failures: list[str] | None = None  # failures of ranks, read when the group broke
        self.sent_at = time.monotonic()
        self.closed = threading.Event()
        self._board = board
        self._rank = rank
        self._beats = 0  # not in the status: this is set by the thread, the status by the rank

    def send(self) -> None:
        """Send the status once; RuntimeError if the store is gone."""
        self._beats += 1
        if self._board.beat(self._rank, replace(self.status, beat=self._beats)):
            if self.failures is None:  # immediately, while the store still exists
                self.failures = self._board.failures()
            self.broken = self.broken or "the group has broken"
        self.sent_at = time.monotonic()

    def listen(self, beats: int) -> None:
        """Wait for `beats` heartbeats of this rank: if they are late, other ranks' may be late too."""
        heard, end = self._beats + beats, time.monotonic() + beats * _LATEST_BEAT_S
        while self._beats < heard and time.monotonic() < end and not self.closed.is_set():
            time.sleep(BEAT_S / 4)

    def run(self) -> None:
        """Send the status until `closed` is set."""
        while not self.closed.wait(BEAT_S):
            try:
                self.send()
            except RuntimeError:  # the store is gone, and so is the process that started this one
                self.broken = "the process that started the ranks is gone"
                return


class Watch:
    """Threads of a rank: its heartbeat, and a guard that ends the rank if it outlives a broken group."""

    def __init__(self, board: HealthBoard, rank: int, host: str, deadline_s: float) -> None:
        self.rank = rank
        self.heartbeat = Heartbeat(board, rank, host)
        self._board = board
        self._gone: set[int] = set()  # ranks that stopped answering
        self._silence_s = deadline_s + 2 * ANSWER_S  # of the store; longer than reporting a failed wait
        self._threads = [
            threading.Thread(target=self.heartbeat.run, name="khop-watch", daemon=True),
            threading.Thread(target=self._guard, name="khop-guard", daemon=True),
        ]
        self.heartbeat.send()

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads; afterwards the guard does not end this rank."""
        self.heartbeat.closed.set()
        for thread in self._threads:
            thread.join(timeout=ANSWER_S)

    def at(self, stage: str, epoch: int = 0, step: int = -1) -> None:
        """Record that this rank enters a stage."""
        before = self.heartbeat.status
        self.heartbeat.status = replace(before, stage=stage, epoch=epoch, step=step, count=before.count + 1)

    def failed(self, sentence: str) -> None:
        """Report an error of this rank to the other ranks, and declare the group broken."""
        own = self.heartbeat.status
        place = f"rank {self.rank} (host {own.host}) failed {own.place}"
        self._board.tell_failure(f"{place}: {sentence}")
        self.give_up()

    def give_up(self) -> None:
        """Declare the group broken: every rank has to end."""
        self.heartbeat.broken = self.heartbeat.broken or "the group has broken"
        self._board.tell_broken()

    def outlast(self) -> None:
        """Wait a while for the other ranks to end: the store may end with this rank's launcher."""
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
        """True if some rank has declared the group broken, or the store is gone."""
        return bool(self.heartbeat.broken)

    def report(self, deadline_s: float) -> str:
        """Return one sentence that names the missing ranks and the stage of the waiting ranks.

        Called after a wait of this rank has failed.
        """
        heartbeat = self.heartbeat
        if heartbeat.failures:
            return "; ".join(heartbeat.failures)
        heartbeat.listen(2)  # time for other ranks to report their errors
        failures, before = self._board.failures(), self._board.statuses()
        if failures:
            return "; ".join(failures)
        if not before:
            return _cut_off(self.rank, heartbeat.status, self._board.where)
        heartbeat.listen(SILENT_BEATS)
        now = self._board.statuses()
        if not now:
            return _cut_off(self.rank, heartbeat.status, self._board.where)
        now[self.rank] = heartbeat.status  # its entry in the store may be half a second old
        silent = [
            rank
            for rank in now
            if rank != self.rank and rank in before and now[rank].beat == before[rank].beat
        ]
        self._gone.update(silent)
        if silent:
            return f"{_who(silent, now)} no longer responds; {_waiting(silent, now)}"
        return _late(now, self.rank, deadline_s)

    def _guard(self) -> None:
        end, heartbeat = float("inf"), self.heartbeat
        while not heartbeat.closed.wait(BEAT_S):
            now = time.monotonic()
            is_cut_off = now - heartbeat.sent_at > self._silence_s
            end = min(end, now + GRACE_S) if heartbeat.broken or is_cut_off else float("inf")
            if now > end:
                own = heartbeat.status
                why = "; ".join(heartbeat.failures or []) or heartbeat.broken
                why = why or _cut_off(self.rank, own, self._board.where)
                sentence = f"khop: rank {self.rank} was still {own.place}: {why}"
                print(sentence, file=sys.stderr, flush=True)
                os._exit(BROKEN)


def _late(now: Mapping[int, Status], rank: int, deadline_s: float) -> str:
    """Name the ranks that did not reach the stage at which this rank waited."""
    evaluating = [each for each, status in now.items() if status.stage.startswith(EVALUATING)]
    others = [each for each in now if each not in evaluating]
    if evaluating and others:
        return (
            f"rank {others[0]} is {now[others[0]].place}, rank {evaluating[0]} called evaluate() and "
            f"waited {deadline_s:g} s: it is collective, call it on every rank (not under `if rank == 0`)"
        )
    least = min(status.count for status in now.values())
    late = [other for other, status in now.items() if status.count == least and other != rank]
    if not late:  # this rank was last, and the others have waited for it
        return (
            f"{_who([rank], now)} waited {deadline_s:g} s, although all others had arrived; "
            f"{_waiting([rank], now)}"
        )
    return f"{_who(late, now)} did not arrive within {deadline_s:g} s; {_waiting(late, now)}"


def _waiting(missing: Collection[int], now: Mapping[int, Status]) -> str:
    seen = ", ".join(f"last seen {now[rank].place}" for rank in missing)
    others = [rank for rank in now if rank not in missing]
    places = dict.fromkeys(now[rank].place for rank in others)
    return f"{seen}. {_ranks(others)} waited {' and '.join(places)}"


def _cut_off(rank: int, own: Status, store: str) -> str:
    return (
        f"rank {rank} (host {own.host}) has lost rank 0's machine ({store}) while {own.place}: the network "
        "between them failed, or that machine or its launcher has ended"
    )


def _who(ranks: list[int], now: Mapping[int, Status]) -> str:
    return ", ".join(f"rank {rank} (host {now[rank].host})" for rank in ranks) or "a rank"


def _ranks(ranks: list[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"
