"""Ctrl-C of the command. Imports little, so that `end_at_once` comes soon after the start of the process.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130  # exit code of SIGINT in shells

interrupts: list[int] = []  # Ctrl-C in this process; a library may convert the exception


def end_at_once() -> None:
    """Let Ctrl-C end this process while modules load, because some swallow KeyboardInterrupt.

    Does nothing if the process ignores Ctrl-C, or handles it in another way.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Handle Ctrl-C as Python does, and record it, after `end_at_once`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _interrupt)


def ignore() -> None:
    """Ignore Ctrl-C: the process is ending, and its last steps must not be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"khop: stopped\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    interrupts.append(number)
    raise KeyboardInterrupt
