"""Entry point of a spawned rank, which watches the parent process before any slow import."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

BROKEN = 70  # exit code of a rank that ends because its parent or its group is gone
STOPPING = (signal.SIGINT, signal.SIGTERM)  # blocked by the parent while it starts this process

_grace_s = 0.0


def main(pipe: int, tracker: int) -> None:
    """Run a spawned process as `multiprocessing` does, and end it when the parent process is gone.

    `pipe` is the inherited end of the pipe through which the parent sends the work. The parent keeps the
    other end open until it exits. The kernel closes that end however the parent dies, even before this
    process has begun. It stays open if only the thread that started this process ends.
    """
    for number in STOPPING:  # until the work begins, a signal ends this process immediately and silently
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    watched = os.dup(pipe)  # spawn_main closes `pipe` once the work is read
    threading.Thread(target=_end_with_parent, args=(watched,), name="khop-parent", daemon=True).start()
    from multiprocessing.spawn import spawn_main  # imported late: watching has to begin first

    try:
        spawn_main(pipe_handle=pipe, tracker_fd=tracker)
    finally:
        if _is_closed(watched, timeout_ms=0):  # avoids a traceback about partly received work
            os._exit(BROKEN)


def grant_grace(seconds: float) -> None:
    """Set the seconds for this process to end by itself and report the reason after the parent's death."""
    global _grace_s
    _grace_s = seconds


def _end_with_parent(pipe: int) -> None:
    _is_closed(pipe, timeout_ms=None)
    time.sleep(_grace_s)
    os._exit(BROKEN)


def _is_closed(pipe: int, timeout_ms: int | None) -> bool:
    """Wait until the other end is closed; unread data do not matter."""
    poll = select.poll()
    poll.register(pipe, 0)  # only POLLHUP, which is always reported
    return bool(poll.poll(timeout_ms))
