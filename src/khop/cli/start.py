"""The entry point of `khop`: the setup that must precede the import of torch."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TextIO

from khop.cli.failures import INTERRUPTED
from khop.process_tuning import tune_before_torch


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Ctrl-C ends it quietly, also while modules are still loading."""
    # khop reports a lost rank in a sentence. The logs of torch would add stacks of C++ frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    tune_before_torch()
    set_warnings_up()
    try:
        with _ended_by_interrupts():
            command = import_module("khop.cli.main")
        command.run(arguments)
    except KeyboardInterrupt:
        print("khop: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        if arguments is None:  # the process is ending, and Ctrl-C must not interrupt its last steps
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """End this process at once on Ctrl-C while modules load: some of them swallow a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"khop: stopped\n")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)


interrupts: list[int] = []  # Ctrl-C of this process; a library may turn the exception into another one


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C as Python does, and note it."""
    interrupts.append(number)
    raise KeyboardInterrupt


def set_warnings_up() -> None:
    """Print warnings of khop in the form of errors: a sentence, without file and line."""
    as_python_does = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is None and "khop" in Path(filename).parts:
            print(f"khop: {message}", file=sys.stderr)
        else:
            as_python_does(message, category, filename, lineno, file, line)

    warnings.showwarning = show
