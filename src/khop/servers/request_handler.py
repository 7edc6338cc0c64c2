"""Requests of a server: validation, fair queues, responses and counters, independent of the transport."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from khop.kernels.memory import resident_bytes
from khop.servers.access import BEATS, Buffer, Role, Token
from khop.servers.call_timeouts import Caller, working_for
from khop.servers.errors import (
    Busy,
    Cancelled,
    GoingAway,
    InvalidRequest,
    MachineFailed,
    ServerError,
    as_server_error,
)
from khop.servers.service import Job, Service


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of a server's work.

    At most `at_once` batches are in memory, and `unsent` per client. Requests take at most `request_bytes`.
    A request that is not answered in `making_s` seconds after its turn fails; a disk or a sampler may hang.
    """

    at_once: int = 2  # batches made concurrently
    unsent: int = 2  # finished batches of one client that it has not received yet
    waiting: int = 512  # queued requests of all clients
    waiting_per_client: int = 32
    request_bytes: int = 1 << 30  # of all requests, from arrival until they are answered
    request_bytes_per_client: int = 1 << 29
    making_s: int = 3600

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} {value!r}: must be a whole number, 1 or more")


class RequestStage(StrEnum):
    """Progress of a request."""

    WAITING = "waiting"
    MAKING = "making"
    SENDING = "sending"


@dataclass(eq=False)
class QueuedRequest:
    """One request of a client."""

    client: str
    stage: RequestStage = RequestStage.WAITING


class ClientQueues:
    """A bounded queue for each client (a connection). Clients are served round-robin."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._queues: dict[str, deque[QueuedRequest]] = {}  # by client, the next one first
        self._begun: set[QueuedRequest] = set()  # being made or sent
        self._admitted = 0  # requests in progress, including those outside the queues
        self._bytes: Counter[str] = Counter()  # of these, by client
        self._draining = False

    @contextmanager
    def admitted(self, client: str, num_bytes: int) -> Iterator[None]:
        """Count a request and its bytes from arrival to end. Shutdown waits for it.

        Busy if the bytes exceed the limit, GoingAway if the server is shutting down.
        """
        with self._changed:
            self.check_open()
            held, of_client, limits = self._bytes.total(), self._bytes[client], self._limits
            most_left = min(limits.request_bytes - held, limits.request_bytes_per_client - of_client)
            if num_bytes > most_left:
                raise Busy(
                    f"the server has {held:,} bytes of requests, {of_client:,} of {client}, but no room for "
                    f"{num_bytes:,} more; retry later"
                )
            self._admitted += 1
            self._bytes[client] += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._admitted -= 1
                self._bytes[client] -= num_bytes
                self._bytes = +self._bytes  # without clients at zero
                self._changed.notify_all()

    def check_open(self) -> None:
        """Raise GoingAway if the server is shutting down."""
        if self._draining:
            raise GoingAway("the server is shutting down; use another server")

    @contextmanager
    def queued(self, client: str) -> Iterator[QueuedRequest]:
        """Put a request into its client's queue, and remove it at the end.

        Busy if the queue is full, GoingAway if the server is shutting down.
        """
        queued = self._join(client)
        try:
            yield queued
        finally:
            with self._changed:
                self._begun.discard(queued)
                self._drop(queued)
                self._admit()

    def wait(self, queued: QueuedRequest, seconds: float) -> bool:
        """Return True once the request may start, or False after these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: queued.stage is not RequestStage.WAITING, seconds)

    def made(self, queued: QueuedRequest) -> None:
        """Record that the batch is finished and only has to be sent."""
        with self._changed:
            queued.stage = RequestStage.SENDING
            self._admit()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    @property
    def is_draining(self) -> bool:
        """True once the server refuses new requests."""
        return self._draining

    def empty(self, seconds: float) -> bool:
        """Return True once no request is in progress, or False after these seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._admitted or self._begun or self._queues), seconds
            )

    def counts(self) -> dict[str, int]:
        """Return the number of requests at each stage."""
        with self._changed:
            found = {stage.value: 0 for stage in RequestStage}
            found[RequestStage.WAITING.value] = sum(map(len, self._queues.values()))
            for queued in self._begun:
                found[queued.stage.value] += 1
            return found

    def _join(self, client: str) -> QueuedRequest:
        queued, limits = QueuedRequest(client), self._limits
        with self._changed:
            self.check_open()
            waiting, of_client = sum(map(len, self._queues.values())), len(self._queues.get(client, ()))
            if waiting >= limits.waiting or of_client >= limits.waiting_per_client:
                raise Busy(
                    f"the server has {waiting} queued requests, {of_client} of this client; retry later"
                )
            self._queues.setdefault(client, deque()).append(queued)
            self._admit()
        return queued

    def _admit(self) -> None:
        """Start queued requests within the limits. A served client goes behind the others."""
        while sum(queued.stage is RequestStage.MAKING for queued in self._begun) < self._limits.at_once:
            sending = Counter(each.client for each in self._begun if each.stage is RequestStage.SENDING)
            # A client that has not received its finished batches waits.
            client = next((each for each in self._queues if sending[each] < self._limits.unsent), None)
            if client is None:
                break
            queued = self._queues[client][0]
            queued.stage = RequestStage.MAKING
            self._begun.add(queued)
            self._queues[client] = self._queues.pop(client)
            self._drop(queued)
        self._changed.notify_all()

    def _drop(self, queued: QueuedRequest) -> None:
        """Remove a request from its queue, and the queue if it is then empty."""
        queue = self._queues.get(queued.client)
        if queue is not None and queued in queue:
            queue.remove(queued)
            if not queue:
                del self._queues[queued.client]


MOST_REQUEST = 256 << 20  # bytes
SMALL_REQUEST = 1 << 15  # bytes
_UNBOUNDED = 1 << 20  # threads; never reached


@dataclass(frozen=True)
class Incoming:
    """An incoming request."""

    num_bytes: int
    receive: Callable[[], Buffer]  # waits for the request; Cancelled if its client is gone


@dataclass(frozen=True)
class ResponseStream:
    """Functions that send to a client. Each raises Cancelled once the client is gone."""

    heartbeat: Callable[[], None]  # sends a heartbeat
    send: Callable[[Buffer], None]  # sends the next piece of the answer


class RequestHandler:
    """Request handler of one server. Clients are served in turn, and get heartbeats while they wait."""

    def __init__(self, service: Service, limits: QueueLimits) -> None:
        self._service, self.graph = service, service.name
        self._queue, self._making_s = ClientQueues(limits), limits.making_s
        self._makers = ThreadPoolExecutor(limits.at_once, thread_name_prefix="khop-batch")
        # Batches wait for hops and rows of other servers. If those waited for batches or for each other,
        # servers could deadlock, so each gets a thread immediately.
        self._answerers = ThreadPoolExecutor(_UNBOUNDED, thread_name_prefix="khop-part")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._started = self._active = time.monotonic()

    def answer(
        self, request: Incoming, token: Token, client: str, stream: ResponseStream, beat_s: float
    ) -> None:
        """Answer one request for a batch; ServerError if it is refused or fails."""
        self._count("requests", 1)
        try:
            self._answer(request, token, client, stream, beat_s)
        except Exception as error:
            failed = as_server_error(error)
            self._count(f"failed_{failed.code.replace('-', '_')}", 1)
            _log_mistake(error)
            if failed is error:
                raise
            raise failed from error

    def _answer(
        self, request: Incoming, token: Token, client: str, stream: ResponseStream, beat_s: float
    ) -> None:
        self.check(token)
        if request.num_bytes > MOST_REQUEST:
            raise InvalidRequest(
                f"a request of {request.num_bytes} bytes: at most {MOST_REQUEST} are allowed"
            )
        # Requests of servers are not limited, because batches wait for them. For small requests only their
        # number is limited, so that large uploads do not block batches of other clients.
        is_counted = token.role is not Role.SERVER and request.num_bytes > SMALL_REQUEST
        counted = request.num_bytes if is_counted else 0
        with self._queue.admitted(client, counted):
            job = self._service.accept(request.receive())
            token.check_role(job.role)
            if job.role is Role.SERVER:
                self._send(self._made(self._answerers, job, stream, beat_s), stream)
                return
            with self._queue.queued(client) as queued:
                while not self._queue.wait(queued, beat_s):
                    stream.heartbeat()
                pieces = self._made(self._makers, job, stream, beat_s)
                self._queue.made(queued)
                self._send(pieces, stream)

    def _made(
        self, makers: ThreadPoolExecutor, job: Job, stream: ResponseStream, beat_s: float
    ) -> Iterator[memoryview]:
        """Run a job in another thread, and send heartbeats meanwhile."""
        gone, end = threading.Event(), time.monotonic() + self._making_s
        caller = Caller(gone, BEATS * beat_s)
        try:
            future: Future[Iterator[memoryview]] = makers.submit(
                working_for, caller, lambda: job.run(gone.is_set)
            )
        except RuntimeError as error:
            gone.set()  # the executor may have kept the job for a later thread
            self._queue.check_open()  # this request has outlasted the shutdown
            raise MachineFailed(f"no thread for a request: {error}") from error
        while True:
            try:
                return future.result(beat_s)
            except NotYet:
                if future.done():  # or it ended just after the wait
                    return future.result()
            if time.monotonic() > end:
                gone.set()
                raise MachineFailed(
                    f"an answer was not made in {self._making_s} s, and its thread may hang; check the "
                    "graph's disk and custom samplers, and restart the server"
                )
            try:
                stream.heartbeat()
            except Cancelled:
                gone.set()
                future.exception()  # its memory counts until then
                raise

    def _send(self, pieces: Iterator[memoryview], stream: ResponseStream) -> None:
        for piece in pieces:
            stream.send(piece)
            self._count("bytes", len(piece))
        self._count("answers", 1)

    def check(self, token: Token) -> None:
        """Raise NotAllowed if the token may not read the graph, GoingAway if the server is shutting down."""
        token.check_graph(self.graph)
        self._queue.check_open()

    def describe(self, token: Token) -> bytes:
        """Return the description of the graph; ServerError if the request is refused."""
        self.check(token)
        return self._service.description()

    def counters(self, token: Token) -> bytes:
        """Return all counters, in JSON, also during shutdown; ServerError if the request is refused."""
        token.check_graph(self.graph)
        return json.dumps(self.status()).encode()

    def status(self) -> dict[str, object]:
        """Return all counters, as plain values."""
        with self._lock:
            own = dict(self._counts)
        described = json.loads(self._service.description())
        return {
            "graph": self._service.name,
            "fingerprint": described.get("fingerprint", ""),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "memory_bytes": resident_bytes(),
            "draining": self._queue.is_draining,
            **self._queue.counts(),
            **{name: own.get(name, 0) for name in ("requests", "answers", "bytes")},
            **own,
            **{f"service_{name}": value for name, value in self._service.counters().items()},
        }

    def drain(self, seconds: float) -> bool:
        """Refuse new requests, and wait for those in progress; return True if all have ended."""
        self._queue.drain()
        ended = self._queue.empty(seconds)
        self._makers.shutdown(wait=ended)
        self._answerers.shutdown(wait=ended)
        return ended

    def idle_s(self) -> float:
        """Return the seconds since the last request began or ended; 0 while one is in progress."""
        if not self._queue.empty(0):
            return 0.0
        return time.monotonic() - self._active

    def _count(self, name: str, amount: int) -> None:
        with self._lock:
            self._counts[name] += amount
            self._active = time.monotonic()


def _log_mistake(error: Exception) -> None:
    """Print the traceback of a bug in khop or in a custom sampler or rule."""
    cause = error.__cause__ if isinstance(error, ServerError) else error
    if not isinstance(cause, Exception) or isinstance(cause, ServerError | ValueError):
        return
    if isinstance(as_server_error(cause), InvalidRequest):
        traceback.print_exception(cause)


def error_message(error: ServerError) -> bytes:
    """Return an error as a message."""
    return json.dumps({"code": error.code, "text": str(error)}).encode()
