"""Answers of a server, without the network: check a request, wait for its turn, make the batch, send it.

`Serves` knows the graph, and `ResponseStream` is the way back to the client.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Protocol

from khop.servers.access import Role, Token
from khop.servers.caller import Caller, working_for
from khop.servers.errors import Cancelled, InvalidRequest, MachineFailed, ServerError, as_server_error
from khop.servers.fair_queue import Client, FairQueue, QueueLimits
from khop.servers.rate import RequestRate
from khop.servers.transport import BEATS, Buffer

MOST_REQUEST = 256 << 20  # bytes
SMALL_REQUEST = 1 << 15  # bytes
MAX_RATE = 1000.0  # requests of a token per second
_UNBOUNDED = 1 << 20  # threads; so many are never needed


class Job(Protocol):
    """A request that was read and checked."""

    @property
    def role(self) -> Role:
        """Role of a token that may send it; one of a server is made at once, and never waits in a queue."""
        ...

    def run(self, cancelled: Callable[[], bool]) -> Iterator[memoryview]:
        """Make the batch; then return its header and its pieces."""
        ...


class Serves(Protocol):
    """The part of a server that knows the graph."""

    @property
    def name(self) -> str:
        """Name of the graph, as in token files."""
        ...

    def description(self) -> bytes:
        """Return the description of the graph, in JSON."""
        ...

    def accept(self, request: Buffer) -> Job:
        """Read and check a request, without work on the graph; ServerError if it cannot be answered."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Return the counts so far."""
        ...


@dataclass(frozen=True)
class Incoming:
    """A request on its way."""

    num_bytes: int
    receive: Callable[[], Buffer]  # the request, once it is here; Cancelled if its client is gone


class ResponseStream(Protocol):
    """The way back to a client. Each method raises Cancelled once the client is gone."""

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        ...

    def send(self, piece: Buffer) -> None:
        """Send the next piece of the answer."""
        ...


class RequestHandler:
    """Answers of one server. Clients take turns, and get heartbeats while they wait."""

    def __init__(self, service: Serves, limits: QueueLimits, max_rate: float = MAX_RATE) -> None:
        self._service, self.graph = service, service.name
        self._rate = RequestRate(max_rate)
        # A budget of their own: the counters are looked at when batches of a token come too fast.
        self._question_rate = RequestRate(max_rate)
        self._queue = FairQueue(limits)
        self._makers = ThreadPoolExecutor(limits.at_once, thread_name_prefix="khop-batch")
        # Batches wait for hops and rows of other servers. If those waited for batches, or for each other,
        # servers would wait in a circle: so each has a thread at once.
        self._answerers = ThreadPoolExecutor(_UNBOUNDED, thread_name_prefix="khop-part")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._started = self._active = time.monotonic()

    def answer(
        self, request: Incoming, token: Token, client: Client, stream: ResponseStream, beat_s: float
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
        self, request: Incoming, token: Token, client: Client, stream: ResponseStream, beat_s: float
    ) -> None:
        self.check(token)
        _take(self._rate, token, client)
        if request.num_bytes > MOST_REQUEST:
            raise InvalidRequest(f"a request of {request.num_bytes} bytes: the most are {MOST_REQUEST}")
        # Requests of servers have no bound: batches of others wait for them. The number of small
        # ones is bounded alone, so that large uploads of some clients refuse no batch of another.
        is_counted = token.role is not Role.SERVER and request.num_bytes > SMALL_REQUEST
        counted = request.num_bytes if is_counted else 0
        with self._queue.admitted(client.owner, counted):
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
        """Do a job in another thread, and send heartbeats meanwhile."""
        gone = threading.Event()
        caller = Caller(gone, BEATS * beat_s)
        try:
            future: Future[Iterator[memoryview]] = makers.submit(
                working_for, caller, lambda: job.run(gone.is_set)
            )
        except RuntimeError as error:
            gone.set()  # the executor may have kept the job for a later thread
            self._queue.check_open()  # the wait for this request took longer than a server has to end
            raise MachineFailed(f"no thread for a request: {error}") from error
        while True:
            try:
                return future.result(beat_s)
            except NotYet:
                if future.done():  # also if it ended just after the wait for it
                    return future.result()
            try:
                stream.heartbeat()
            except Cancelled:
                gone.set()
                future.exception()  # until then, its memory counts
                raise

    def _send(self, pieces: Iterator[memoryview], stream: ResponseStream) -> None:
        for piece in pieces:
            stream.send(piece)
            self._count("bytes", len(piece))
        self._count("answers", 1)

    def check(self, token: Token) -> None:
        """Raise NotAllowed if the token may not read the graph, GoingAway if the server ends."""
        token.check_graph(self.graph)
        self._queue.check_open()

    def describe(self, token: Token, client: Client) -> bytes:
        """Return the description of the graph; ServerError if it is refused."""
        self.check(token)
        _take(self._question_rate, token, client)
        return self._service.description()

    def counters(self, token: Token, client: Client) -> bytes:
        """Return all counters, in JSON, also while the server ends; ServerError if they are refused."""
        token.check_graph(self.graph)
        _take(self._question_rate, token, client)
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
        """Take nothing new, and wait for the requests that have begun; return whether all have ended."""
        self._queue.drain()
        ended = self._queue.empty(seconds)
        self._makers.shutdown(wait=ended)
        self._answerers.shutdown(wait=ended)
        return ended

    def idle_s(self) -> float:
        """Return the seconds since the last request began or ended; 0 while one is under way."""
        if not self._queue.empty(0):
            return 0.0
        return time.monotonic() - self._active

    def _count(self, name: str, amount: int) -> None:
        with self._lock:
            self._counts[name] += amount
            self._active = time.monotonic()


def _take(rate: RequestRate, token: Token, client: Client) -> None:
    """Count a request of a client. Servers are not bounded: a batch asks the others for many hops."""
    if token.role is not Role.SERVER:
        rate.take(client.owner)


def _log_mistake(error: Exception) -> None:
    """Print the traceback of a mistake in code: of khop, or of a custom sampler or rule."""
    cause = error.__cause__ if isinstance(error, ServerError) else error
    if cause is not None and not isinstance(cause, ServerError | ValueError | OSError | MemoryError):
        traceback.print_exception(cause)


def error_message(error: ServerError) -> bytes:
    """Return an error as it travels."""
    return json.dumps({"code": error.code, "text": str(error)}).encode()


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM, mapped files included; 0 without /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
