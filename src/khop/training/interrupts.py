"""Ctrl-C and SIGTERM between two things that belong together."""

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
    """Hold Ctrl-C and SIGTERM back until the block is through, so that it happens whole or not at all.

    Outside the main thread, where Python delivers no signals, there is nothing to hold.
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
    """Let the first Ctrl-C or SIGTERM in the block only be noted, in the list, for the block to end.

    A second one does what it did before. Outside the main thread none comes.
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
    """SIGTERM raises Terminated in the block, where it would else end the process at once.

    A handler that somebody has put in stays.
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
