"""The entry point of `khop`: what has to happen before torch is imported."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

from khop.process_memory import tune_memory

INTERRUPTED = 130  # as a shell reports SIGINT
TERMINATED = 143  # and SIGTERM


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Ctrl-C while modules are still loading ends it quietly, as it does later."""
    # OpenMP reads this when torch loads it. Its threads would else spin between two operators, and take the
    # cores from the sampler's threads and from other programs (measured: docs/decisions.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A rank that is lost is told of in a sentence; torch's own logs of it are stacks of C++ frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    set_memory_up()
    set_warnings_up()
    try:
        import_module("khop.cli.main").run(arguments)
    except KeyboardInterrupt:
        print("khop: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        if arguments is None:  # this process is ending: one more Ctrl-C must not interrupt what it does last
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def set_warnings_up() -> None:
    """Print warnings of khop as errors are printed: a sentence, without file and line."""
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


def set_memory_up() -> None:
    """Tune this process's memory, unless the environment has its own idea of it."""
    if not _has_chosen_allocation():
        tune_memory()


def _has_chosen_allocation() -> bool:
    """Whether the environment tunes the allocator already, or says that it is not glibc's own."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    own = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")
    return "glibc.malloc" in tunables or any(name in os.environ for name in own)
