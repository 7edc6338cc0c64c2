"""Timeouts of calls whose peer does not respond, and cancellation of calls.

One thread monitors all calls of the process.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

_POLL_S = 0.1  # how often stop events are checked


class End(StrEnum):
    """Reason for the end of a call."""

    TIMED_OUT = "timed-out"
    STOPPED = "stopped"


@dataclass(eq=False)
class Call:
    """One call that waits for its peer."""

    cancel: Callable[[], None]
    silence_s: float
    stop: threading.Event | None
    last: float
    ended: End | None = None

    def heard(self) -> None:
        """Record a heartbeat of the peer."""
        self.last = time.monotonic()

    def due(self, now: float) -> End | None:
        """Return the reason to end the call, if there is one."""
        if self.stop is not None and self.stop.is_set():
            return End.STOPPED
        return End.TIMED_OUT if now - self.last > self.silence_s else None


class CallTimeouts:
    """Monitors calls in one thread, which runs while there are calls."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[Call] = set()
        self._runs = False

    @contextmanager
    def watching(
        self, cancel: Callable[[], None], silence_s: float, stop: threading.Event | None
    ) -> Iterator[Call]:
        """Call `cancel` from another thread once `heard` was not called for `silence_s`, or `stop` is set."""
        call = Call(cancel, silence_s, stop, time.monotonic())
        with self._changed:
            self._calls.add(call)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="khop-silence", daemon=True).start()
        try:
            yield call
        finally:
            with self._changed:
                self._calls.discard(call)

    def _run(self) -> None:
        idle = 0
        while True:
            with self._changed:
                idle = 0 if self._calls else idle + 1
                if idle > 10:
                    self._runs = False
                    return
                self._changed.wait(_POLL_S)
                now = time.monotonic()
                due = [(call, end) for call in self._calls if call.ended is None and (end := call.due(now))]
                for call, end in due:
                    call.ended = end
            for call, _ in due:
                with suppress(Exception):  # the other calls need this thread, even if this one failed
                    call.cancel()


Value = TypeVar("Value")


@dataclass(frozen=True)
class Caller:
    """The sender of a request, for code that queries other servers meanwhile."""

    gone: threading.Event  # set once it no longer waits
    patience_s: float  # longest wait for other servers: an attempt of the sender


_CALLER: ContextVar[Caller | None] = ContextVar("khop_caller", default=None)


def present_caller() -> Caller | None:
    """Return the sender that this thread works for; None outside of requests."""
    return _CALLER.get()


def working_for(caller: Caller, work: Callable[[], Value]) -> Value:
    """Work for this sender on this thread while the block runs."""
    token = _CALLER.set(caller)
    try:
        return work()
    finally:
        _CALLER.reset(token)


_OPEN_FILES = Path("/dev/fd")  # of this process, on Linux and macOS


def shut_down(peer: str) -> None:
    """Shut down the connections to a peer, such as "ipv4:10.0.0.5:4711" or "ipv6:%5B::1%5D:4711"."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (_number(host.strip("[]")), int(port))
    for each in os.listdir(_OPEN_FILES):
        with suppress(OSError):  # not connected, or already closed
            if stat.S_ISSOCK(os.fstat(int(each)).st_mode):
                with socket.socket(fileno=os.dup(int(each))) as found:
                    if _remote(found) == wanted:
                        found.shutdown(socket.SHUT_RDWR)


def _remote(connection: socket.socket) -> tuple[str, int] | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host, port = connection.getpeername()[:2]
    return _number(host), port


def _number(host: str) -> str:
    """Return the canonical IP address: without the interface, and as IPv4 if it is IPv4-mapped."""
    number = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(number, "ipv4_mapped", None) or number)
