"""Main loop of a server: logging, metrics, graceful shutdown, and the restart of processes that ended.

Metrics are served over HTTP in the text format of Prometheus.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from khop.graph.atomic import in_bytes
from khop.servers.access import Address
from khop.servers.request_handler import RequestHandler

_POLL_S = 0.2
_RESTART_S = (0.5, 10.0)  # pause before a process that ended is started again, first and longest
_GRACE_S = 5.0  # after the drain, for a process to end


@dataclass(frozen=True)
class Life:
    """Logging interval and end of a server."""

    exit_idle_s: float | None = None  # without a request
    log_every_s: float = 60.0
    drain_s: float = 60.0  # longest wait for requests in progress
    parent: int | None = None  # process without which a supervised server ends


def serve_until(
    handler: RequestHandler, life: Life, stop: threading.Event, say: Callable[[str], None]
) -> bool:
    """Log until `stop` is set or the server is idle for too long; then drain it.

    A supervised server also ends if its parent is gone, for example killed. Returns True if all requests in
    progress were finished.
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
        if life.parent is not None and life.parent != os.getppid():
            say("the process that started this server is gone: ending")
            break
    say("shutting down: finishing started requests, refusing new ones")
    ended = handler.drain(life.drain_s)
    say("ended" if ended else f"requests still in progress after {life.drain_s:g} s were dropped")
    return ended


def log_line(before: Mapping[str, object], now: Mapping[str, object], seconds: float) -> str:
    """Return a log line about the time between two statuses."""

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
    """One of several server processes on this machine."""

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
    """Keep one process per command running until `stop` is set or all have exited.

    `starts` has a context for each command, which is entered while its process is started; default none.
    Returns True if all processes that were still running ended as intended, without dropped requests.
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
    return all(code in (0, -signal.SIGTERM) for code in codes)  # SIGTERM: it had not begun to serve


def _is_done(process: _Process) -> bool:
    """Return True if the process has ended as intended: an idle server."""
    return process.running is not None and process.running.poll() == 0


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a process to exit, or kill it; return its exit code."""
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
    """Return the metrics of a status with their types; one has graph and fingerprint as labels."""
    lines = []
    for key, value in status.items():
        if isinstance(value, int | float) and key != "pid":
            gauge = key in _GAUGES
            name = f"khop_{_OTHER.sub('_', key.lower())}{'' if gauge else '_total'}"
            lines += [f"# TYPE {name} {'gauge' if gauge else 'counter'}", f"{name} {_written(value)}"]
    labels = ",".join(f'{key}="{_escaped(str(status[key]))}"' for key in sorted(_LABELS & status.keys()))
    return "\n".join([*lines, "# TYPE khop_graph gauge", f"khop_graph{{{labels}}} 1", ""])


def _written(value: float) -> str:
    """Return all digits of a number; `g` would round byte counters."""
    return str(int(value)) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Metrics(ThreadingHTTPServer):
    """An HTTP server with one page."""

    daemon_threads = True

    def __init__(self, address: Address, status: Callable[[], Mapping[str, object]]) -> None:
        self.status = status
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
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
    """Serve metrics on an address while the block runs; yield the port, 0 without an address."""
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
