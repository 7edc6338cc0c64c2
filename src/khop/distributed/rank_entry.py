"""The first code of khop in a spawned rank: watch the parent process, before any slow import."""

from __future__ import annotations

import os
import select
import threading
import time

BROKEN = 70  # exit code of a rank that was ended because its parent or its group is gone

_grace_s = 0.0


def main(pipe: int, tracker: int) -> None:
    """Run a spawned process as `multiprocessing` does, and end it when the parent process is gone.

    `pipe` is the inherited end of the pipe through which the parent sends the work. The parent holds the
    other end for as long as it lives: the kernel closes it however the parent dies, also before this process
    has begun, and not when the thread that started this process ends.
    """
    watched = os.dup(pipe)  # spawn_main closes `pipe` once the work is read
    threading.Thread(target=_end_with_parent, args=(watched,), name="khop-parent", daemon=True).start()
    from multiprocessing.spawn import spawn_main  # after the watch has begun

    try:
        spawn_main(pipe_handle=pipe, tracker_fd=tracker)
    finally:
        if _is_closed(watched, timeout_ms=0):  # no traceback about work that came only in part
            os._exit(BROKEN)


def grant_grace(seconds: float) -> None:
    """From now on, leave this process `seconds` after the parent's death: to end by itself and to say why."""
    global _grace_s
    _grace_s = seconds


def _end_with_parent(pipe: int) -> None:
    _is_closed(pipe, timeout_ms=None)
    time.sleep(_grace_s)
    os._exit(BROKEN)


def _is_closed(pipe: int, timeout_ms: int | None) -> bool:
    """Wait until the other end is closed; unread data do not matter."""
    poll = select.poll()
    poll.register(pipe, 0)  # POLLHUP alone, which is always reported
    return bool(poll.poll(timeout_ms))
