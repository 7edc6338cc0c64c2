"""The life of a server: it answers, logs, and ends with nothing begun left unfinished."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from khop.graph.progress import in_bytes
from khop.servers.request_handler import RequestHandler

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
    say("going away: finishing what has begun, refusing new requests")
    ended = handler.drain(life.drain_s)
    say("ended" if ended else f"requests still under way after {life.drain_s:g} s were dropped")
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

    def keep_up(self, now: float, say: Callable[[str], None]) -> None:
        """Start the process, again after a pause if it has failed."""
        if self.running is not None and (code := self.running.poll()) is not None:
            lived = now - self.begun
            self.pause = _RESTART_S[0] if lived > 60 else min(_RESTART_S[1], 2 * self.pause)
            self.not_before, self.running = now + self.pause, None
            say(f"a server ended with code {code} after {lived:.0f} s; starting it again in {self.pause:g} s")
        if self.running is None and now >= self.not_before:
            self.running, self.begun = subprocess.Popen(self.command), now


def supervise(
    commands: Sequence[Sequence[str]], life: Life, stop: threading.Event, say: Callable[[str], None]
) -> bool:
    """Keep one process per command running until `stop` is set, or until all have ended by themselves.

    Return whether all that were running then have ended as intended, with nothing dropped.
    """
    processes = [_Process(command) for command in commands]
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
