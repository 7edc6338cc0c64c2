"""FairQueue of clients at a server: how many batches are made at once, and who is next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from khop.servers.errors import Busy, GoingAway


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of a server's work. Its memory holds at most `at_once` + clients x `unsent` batches."""

    at_once: int = 2  # batches that are made at the same time
    unsent: int = 2  # finished batches of one client that are on their way to it
    waiting: int = 256  # requests of all clients that wait
    waiting_per_client: int = 32

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} {value!r}: must be a whole number, 1 or more")


class Stage(StrEnum):
    """Progress of a request."""

    WAITING = "waiting"
    MAKING = "making"
    SENDING = "sending"


@dataclass(eq=False)
class QueuedRequest:
    """One request of a client."""

    client: str
    stage: Stage = Stage.WAITING


class FairQueue:
    """A queue for each client. The clients are served in turn, however many requests each one has."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._queues: dict[
            str, deque[QueuedRequest]
        ] = {}  # clients with waiting requests, the next one first
        self._begun: set[QueuedRequest] = set()  # being made or sent
        self._draining = False

    @contextmanager
    def queued(self, client: str) -> Iterator[QueuedRequest]:
        """Put a request in the queue of its client, and take it out at the end.

        Busy if the queue is full, GoingAway if the server takes nothing new.
        """
        queued = self._join(client)
        try:
            yield queued
        finally:
            with self._changed:
                self._begun.discard(queued)
                _drop(self._queues, queued)
                self._admit()

    def wait(self, queued: QueuedRequest, seconds: float) -> bool:
        """Return True once the request may be made, or False after these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: queued.stage is not Stage.WAITING, seconds)

    def made(self, queued: QueuedRequest) -> None:
        """State that the batch is made, and only has to be sent."""
        with self._changed:
            queued.stage = Stage.SENDING
            self._admit()

    def drain(self) -> None:
        """Take nothing new from now on."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    @property
    def is_draining(self) -> bool:
        """Whether the server takes nothing new."""
        return self._draining

    def empty(self, seconds: float) -> bool:
        """Return True once no request is waiting, made or sent, or False after these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._begun and not self._queues, seconds)

    def counts(self) -> dict[str, int]:
        """Return the number of requests at each stage."""
        with self._changed:
            found = {stage.value: 0 for stage in Stage}
            found[Stage.WAITING.value] = sum(map(len, self._queues.values()))
            for queued in self._begun:
                found[queued.stage.value] += 1
            return found

    def _join(self, client: str) -> QueuedRequest:
        queued = QueuedRequest(client)
        with self._changed:
            if self._draining:
                raise GoingAway("the server is going away: it finishes what it began; ask another server")
            waiting = sum(map(len, self._queues.values()))
            of_client = len(self._queues.get(client, ()))
            if waiting >= self._limits.waiting or of_client >= self._limits.waiting_per_client:
                raise Busy(
                    f"the server has {waiting} requests waiting, {of_client} of this client; ask later"
                )
            self._queues.setdefault(client, deque()).append(queued)
            self._admit()
        return queued

    def _admit(self) -> None:
        """Let requests begin while there is limits. A client that was served goes behind the others."""
        while sum(queued.stage is Stage.MAKING for queued in self._begun) < self._limits.at_once:
            unsent = self._limits.unsent
            ready = (name for name in self._queues if _num_sending(self._begun, name) < unsent)
            client = next(ready, None)
            if client is None:
                break
            queue = self._queues.pop(client)
            queued = queue.popleft()
            queued.stage = Stage.MAKING
            self._begun.add(queued)
            if queue:
                self._queues[client] = queue
        self._changed.notify_all()


def _num_sending(begun: Iterable[QueuedRequest], client: str) -> int:
    return sum(queued.client == client and queued.stage is Stage.SENDING for queued in begun)


def _drop(queues: dict[str, deque[QueuedRequest]], queued: QueuedRequest) -> None:
    queue = queues.get(queued.client)
    if queue is not None and queued in queue:
        queue.remove(queued)
        if not queue:
            del queues[queued.client]
