"""FairQueue of clients at a server: how many batches are made at once, and who is next."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from khop.servers.errors import Busy, GoingAway


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of a server's work.

    Its memory holds at most `at_once` batches, and of each owner `unsent_per_owner` or its connections x
    `unsent`, if they are fewer. Requests take `request_bytes` at most.
    """

    at_once: int = 2  # batches that are made at the same time
    unsent: int = 2  # finished batches of one connection that are on their way to it
    unsent_per_owner: int = 16
    waiting: int = 512  # requests of all clients that wait
    waiting_per_client: int = 32  # of one connection
    waiting_per_owner: int = 256
    request_bytes: int = 1 << 30  # of all requests, from their arrival until they are answered
    request_bytes_per_owner: int = 1 << 29

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} {value!r}: must be a whole number, 1 or more")


@dataclass(frozen=True)
class Client:
    """The sender of a request."""

    owner: str  # a token, or a machine where there are none: the turns are theirs
    connection: str  # one of the owner's


class Stage(StrEnum):
    """Progress of a request."""

    WAITING = "waiting"
    MAKING = "making"
    SENDING = "sending"


@dataclass(eq=False)
class QueuedRequest:
    """One request of a client."""

    client: Client
    stage: Stage = Stage.WAITING


Queues = dict[str, dict[str, deque[QueuedRequest]]]  # by owner and connection, the next ones first


class FairQueue:
    """A queue for each connection. Owners of tokens are served in turn, then the connections of each.

    Neither the number of an owner's requests nor that of its connections gets it more turns.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._queues: Queues = {}
        self._begun: set[QueuedRequest] = set()  # being made or sent
        self._admitted = 0  # requests under way, also those that need no turn
        self._bytes: Counter[str] = Counter()  # of these, by owner
        self._draining = False

    @contextmanager
    def admitted(self, owner: str, num_bytes: int) -> Iterator[None]:
        """Count a request and its bytes from its arrival to its end. A server that ends waits for it.

        Busy if there is no room for the bytes, GoingAway if the server takes nothing new.
        """
        with self._changed:
            self.check_open()
            self._check_bytes(owner, num_bytes)
            self._admitted += 1
            self._bytes[owner] += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._admitted -= 1
                self._bytes[owner] -= num_bytes
                self._bytes = +self._bytes  # without owners of nothing
                self._changed.notify_all()

    def _check_bytes(self, owner: str, num_bytes: int) -> None:
        held, of_owner = self._bytes.total(), self._bytes[owner]
        limits = self._limits
        if held + num_bytes > limits.request_bytes or of_owner + num_bytes > limits.request_bytes_per_owner:
            raise Busy(
                f"the server has {held:,} bytes of requests, {of_owner:,} of {owner}, and no room for "
                f"{num_bytes:,} more; ask later"
            )

    def check_open(self) -> None:
        """Raise GoingAway if the server takes nothing new."""
        if self._draining:
            raise GoingAway("the server is going away: it finishes what it began; ask another server")

    @contextmanager
    def queued(self, client: Client) -> Iterator[QueuedRequest]:
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
        """True once the server takes nothing new."""
        return self._draining

    def empty(self, seconds: float) -> bool:
        """Return True once no request is under way, or False after these seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._admitted or self._begun or self._queues), seconds
            )

    def counts(self) -> dict[str, int]:
        """Return the number of requests at each stage."""
        with self._changed:
            found = {stage.value: 0 for stage in Stage}
            found[Stage.WAITING.value] = sum(map(_length, self._queues.values()))
            for queued in self._begun:
                found[queued.stage.value] += 1
            return found

    def _join(self, client: Client) -> QueuedRequest:
        queued, limits = QueuedRequest(client), self._limits
        with self._changed:
            self.check_open()
            of_owner = self._queues.get(client.owner, {})
            waiting = (sum(map(_length, self._queues.values())), _length(of_owner))
            of_client = len(of_owner.get(client.connection, ()))
            most = (limits.waiting, limits.waiting_per_owner, limits.waiting_per_client)
            if any(count >= limit for count, limit in zip((*waiting, of_client), most, strict=True)):
                raise Busy(
                    f"the server has {waiting[0]} requests waiting, {waiting[1]} of {client.owner}, "
                    f"{of_client} of this client; ask later"
                )
            self._queues.setdefault(client.owner, {}).setdefault(client.connection, deque()).append(queued)
            self._admit()
        return queued

    def _admit(self) -> None:
        """Let requests begin within the limits. An owner that was served goes behind the others."""
        while sum(queued.stage is Stage.MAKING for queued in self._begun) < self._limits.at_once:
            sending = [queued.client for queued in self._begun if queued.stage is Stage.SENDING]
            client = next(
                (each for each in _in_turn(self._queues) if _may_begin(self._limits, each, sending)), None
            )
            if client is None:
                break
            queued = self._queues[client.owner][client.connection][0]
            queued.stage = Stage.MAKING
            self._begun.add(queued)
            of_owner = self._queues.pop(client.owner)
            queue = of_owner.pop(client.connection)
            self._queues[client.owner] = of_owner | {client.connection: queue}  # both behind the others
            _drop(self._queues, queued)
        self._changed.notify_all()


def _may_begin(limits: QueueLimits, client: Client, sending: Sequence[Client]) -> bool:
    """Return False for a client that has not taken the batches that are finished."""
    of_owner = sum(each.owner == client.owner for each in sending)
    return of_owner < limits.unsent_per_owner and sending.count(client) < limits.unsent


def _in_turn(queues: Queues) -> Iterator[Client]:
    return (Client(owner, connection) for owner, of_owner in queues.items() for connection in of_owner)


def _length(of_owner: Mapping[str, Sized]) -> int:
    return sum(map(len, of_owner.values()))


def _drop(queues: Queues, queued: QueuedRequest) -> None:
    """Take a request out of its queue, and queues that are empty then."""
    client = queued.client
    queue = queues.get(client.owner, {}).get(client.connection)
    if queue is None or queued not in queue:
        return
    queue.remove(queued)
    if not queue:
        del queues[client.owner][client.connection]
    if not queues[client.owner]:
        del queues[client.owner]
