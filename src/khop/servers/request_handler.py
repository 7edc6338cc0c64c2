"""Server main loop: request validation, fair queues, responses, logging, metrics and graceful shutdown.

This module is independent of the transport. Metrics are served over HTTP in the text format of Prometheus.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from khop.graph.atomic import in_bytes
from khop.servers.access import BEATS, Address, Buffer, Role, Token
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

    Its memory holds at most `at_once` batches, and `unsent` of each client. Requests take `request_bytes` at
    most.
    """

    at_once: int = 2  # batches that are made at the same time
    unsent: int = 2  # finished batches of one client that are on their way to it
    waiting: int = 512  # requests of all clients that wait
    waiting_per_client: int = 32
    request_bytes: int = 1 << 30  # of all requests, from their arrival until they are answered
    request_bytes_per_client: int = 1 << 29

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
    """A bounded queue for each client, which is a connection. Clients are served in turn."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._queues: dict[str, deque[QueuedRequest]] = {}  # by client, the next one first
        self._begun: set[QueuedRequest] = set()  # being made or sent
        self._admitted = 0  # requests under way, also those that need no turn
        self._bytes: Counter[str] = Counter()  # of these, by client
        self._draining = False

    @contextmanager
    def admitted(self, client: str, num_bytes: int) -> Iterator[None]:
        """Count a request and its bytes from its arrival to its end. A server that ends waits for it.

        Busy if there is no room for the bytes, GoingAway if the server takes nothing new.
        """
        with self._changed:
            self.check_open()
            held, of_client, limits = self._bytes.total(), self._bytes[client], self._limits
            most_left = min(limits.request_bytes - held, limits.request_bytes_per_client - of_client)
            if num_bytes > most_left:
                raise Busy(
                    f"the server has {held:,} bytes of requests, {of_client:,} of {client}, and no room for "
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
                self._bytes = +self._bytes  # without clients of nothing
                self._changed.notify_all()

    def check_open(self) -> None:
        """Raise GoingAway if the server takes nothing new."""
        if self._draining:
            raise GoingAway("the server is shutting down; use another server")

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
                self._drop(queued)
                self._admit()

    def wait(self, queued: QueuedRequest, seconds: float) -> bool:
        """Return True once the request may be made, or False after these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: queued.stage is not RequestStage.WAITING, seconds)

    def made(self, queued: QueuedRequest) -> None:
        """State that the batch is made, and only has to be sent."""
        with self._changed:
            queued.stage = RequestStage.SENDING
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
                    f"the server has {waiting} requests waiting, {of_client} of this client; ask later"
                )
            self._queues.setdefault(client, deque()).append(queued)
            self._admit()
        return queued

    def _admit(self) -> None:
        """Let requests begin within the limits. A client that was served goes behind the others."""
        while sum(queued.stage is RequestStage.MAKING for queued in self._begun) < self._limits.at_once:
            sending = Counter(each.client for each in self._begun if each.stage is RequestStage.SENDING)
            # A client that has not taken the batches that are finished gets no further ones.
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
        """Take a request out of its queue, and the queue if it is empty then."""
        queue = self._queues.get(queued.client)
        if queue is not None and queued in queue:
            queue.remove(queued)
            if not queue:
                del self._queues[queued.client]


MOST_REQUEST = 256 << 20  # bytes
SMALL_REQUEST = 1 << 15  # bytes
_UNBOUNDED = 1 << 20  # threads; so many are never needed


@dataclass(frozen=True)
class Incoming:
    """A request on its way."""

    num_bytes: int
    receive: Callable[[], Buffer]  # the request, once it is here; Cancelled if its client is gone


@dataclass(frozen=True)
class ResponseStream:
    """The way back to a client. Each function raises Cancelled once the client is gone."""

    heartbeat: Callable[[], None]  # sends a heartbeat
    send: Callable[[Buffer], None]  # sends the next piece of the answer


class RequestHandler:
    """Answers of one server. Clients take turns, and get heartbeats while they wait."""

    def __init__(self, service: Service, limits: QueueLimits) -> None:
        self._service, self.graph = service, service.name
        self._queue = ClientQueues(limits)
        self._makers = ThreadPoolExecutor(limits.at_once, thread_name_prefix="khop-batch")
        # Batches wait for hops and rows of other servers. If those waited for batches, or for each other,
        # servers would wait in a circle: so each has a thread at once.
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
            raise InvalidRequest(f"a request of {request.num_bytes} bytes: the most are {MOST_REQUEST}")
        # Requests of servers have no bound: batches of others wait for them. The number of small
        # ones is bounded alone, so that large uploads of some clients refuse no batch of another.
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

    def describe(self, token: Token) -> bytes:
        """Return the description of the graph; ServerError if it is refused."""
        self.check(token)
        return self._service.description()

    def counters(self, token: Token) -> bytes:
        """Return all counters, in JSON, also while the server ends; ServerError if they are refused."""
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


_POLL_S = 0.2
_RESTART_S = (0.5, 10.0)  # pause before a process that ended is started again, first and longest
_GRACE_S = 5.0  # beyond the drain, for a process to end


@dataclass(frozen=True)
class Life:
    """When a server logs and ends."""

    exit_idle_s: float | None = None  # without a request
    log_every_s: float = 60.0
    drain_s: float = 60.0  # longest wait for what has begun


def serve_until(
    handler: RequestHandler, life: Life, stop: threading.Event, say: Callable[[str], None]
) -> bool:
    """Log until `stop` is set or the server is idle for too long; then drain it.

    Return whether all that was begun has been finished.
    """
    logged, before = time.monotonic(), handler.status()
    while not stop.wait(_POLL_S):
        now = time.monotonic()
        if now - logged >= life.log_every_s:
            status = handler.status()
            say(log_line(before, status, now - logged))
            logged, before = now, status
        if life.exit_idle_s is not None and handler.idle_s() > life.exit_idle_s:
            say(f"no request for {life.exit_idle_s:g} s: ending")
            break
    say("shutting down: finishing started requests, refusing new ones")
    ended = handler.drain(life.drain_s)
    say("ended" if ended else f"requests still in progress after {life.drain_s:g} s were dropped")
    return ended


def log_line(before: Mapping[str, object], now: Mapping[str, object], seconds: float) -> str:
    """Return one line about the time between two statuses."""

    def rise(name: str) -> float:
        return _number(now, name) - _number(before, name)

    failed = sum(rise(name) for name in now if name.startswith("failed_"))
    return (
        f"{rise('answers') / seconds:.1f} answers/s, {rise('bytes') / seconds / 1e6:.1f} MB/s, "
        f"{failed:.0f} failed, {_number(now, 'waiting'):.0f} waiting, "
        f"{_number(now, 'making'):.0f} being made, {_number(now, 'sending'):.0f} being sent, "
        f"{in_bytes(_number(now, 'memory_bytes'))}"
    )


def _number(status: Mapping[str, object], name: str) -> float:
    value = status.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass
class _Process:
    """One server among several of this machine."""

    command: Sequence[str]
    running: subprocess.Popen[bytes] | None = None
    begun: float = 0.0
    not_before: float = 0.0
    pause: float = field(default=_RESTART_S[0])
    start: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while it is started

    def keep_up(self, now: float, say: Callable[[str], None]) -> None:
        """Start the process, again after a pause if it has failed."""
        if self.running is not None and (code := self.running.poll()) is not None:
            lived = now - self.begun
            self.pause = _RESTART_S[0] if lived > 60 else min(_RESTART_S[1], 2 * self.pause)
            self.not_before, self.running = now + self.pause, None
            say(f"a server ended with code {code} after {lived:.0f} s; restarting it in {self.pause:g} s")
        if self.running is None and now >= self.not_before:
            with self.start():
                self.running, self.begun = subprocess.Popen(self.command), now


def supervise(
    commands: Sequence[Sequence[str]],
    life: Life,
    stop: threading.Event,
    say: Callable[[str], None],
    starts: Sequence[Callable[[], AbstractContextManager[None]]] = (),
) -> bool:
    """Keep one process per command running until `stop` is set, or until all have ended by themselves.

    `starts` has a context for each command, which is entered while its process is started; default none.
    Return whether all that were running then have ended as intended, with nothing dropped.
    """
    contexts = starts or [nullcontext] * len(commands)
    processes = [_Process(command, start=start) for command, start in zip(commands, contexts, strict=True)]
    codes: list[int] = []
    try:
        while processes and not stop.wait(_POLL_S):
            processes = [each for each in processes if not _is_done(each)]
            for process in processes:
                process.keep_up(time.monotonic(), say)
    finally:
        running = [process.running for process in processes if process.running is not None]
        for each in running:
            each.terminate()
        codes += [_end(each, life.drain_s + _GRACE_S) for each in running]
    return all(code in (0, -signal.SIGTERM) for code in codes)  # by the signal: it had not begun to serve


def _is_done(process: _Process) -> bool:
    """Return whether the process has ended as intended: a server that was idle."""
    return process.running is not None and process.running.poll() == 0


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for the end of a process, or end it; return its exit code."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


_GAUGES = {"waiting", "making", "sending", "draining", "memory_bytes", "uptime_s"} | {
    "service_views",
    "service_view_bytes",
}
_LABELS = {"graph", "fingerprint"}
_OTHER = re.compile(r"[^a-z0-9_]+")


def prometheus_text(status: Mapping[str, object]) -> str:
    """Return the numbers of a status, each with its type; graph and fingerprint are labels of one of them."""
    lines = []
    for key, value in status.items():
        if isinstance(value, int | float) and key != "pid":
            gauge = key in _GAUGES
            name = f"khop_{_OTHER.sub('_', key.lower())}{'' if gauge else '_total'}"
            lines += [f"# TYPE {name} {'gauge' if gauge else 'counter'}", f"{name} {_written(value)}"]
    labels = ",".join(f'{key}="{_escaped(str(status[key]))}"' for key in sorted(_LABELS & status.keys()))
    return "\n".join([*lines, "# TYPE khop_graph gauge", f"khop_graph{{{labels}}} 1", ""])


def _written(value: float) -> str:
    """Return all digits of a number: counters of bytes have more than `g` would print."""
    return str(int(value)) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Metrics(ThreadingHTTPServer):
    """An HTTP server with one page."""

    daemon_threads = True

    def __init__(self, address: Address, status: Callable[[], Mapping[str, object]]) -> None:
        self.status = status
        super().__init__((address.host, address.port), _Page)


class _Page(BaseHTTPRequestHandler):
    server: _Metrics
    timeout = 10

    def do_GET(self) -> None:
        """Answer /metrics."""
        if self.path != "/metrics":
            self.send_error(404)
            return
        text = prometheus_text(self.server.status()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes come every few seconds."""


@contextmanager
def metrics_on(address: Address | None, status: Callable[[], Mapping[str, object]]) -> Iterator[int]:
    """Answer scrapes on an address while the block runs; yield the port, 0 without an address."""
    if address is None:
        yield 0
        return
    try:
        server = _Metrics(address, status)
    except OSError as error:
        reason = f"cannot listen on {address} for metrics: {error.strerror}"
        raise OSError(f"{reason}; choose another --metrics") from None
    thread = threading.Thread(target=server.serve_forever, name="khop-metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
