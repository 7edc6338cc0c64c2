"""Deferred handling of Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from khop.errors import Terminated

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block, so that the block runs completely or not at all.

    Outside the main thread this does nothing: Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before = {number: signal.signal(number, lambda *came: held.append(came)) for number in _HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for came, frame in held[:1]:
        handler = before[signal.Signals(came)]
        if callable(handler):
            handler(came, frame)
        elif handler is signal.SIG_DFL:
            signal.raise_signal(came)


@contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """Record the first Ctrl-C or SIGTERM of the block in the list, and let the block end by itself.

    A second signal goes to the previous handler. Outside the main thread no signal arrives.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, note) for number in _HELD}
    try:
        yield noted
    finally:
        restore()


@contextmanager
def terminations_raised() -> Iterator[None]:
    """Make SIGTERM raise Terminated in the block instead of ending the process at once.

    A handler that is already installed stays.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
