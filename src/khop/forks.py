"""Warnings for processes forked while torch had threads or a GPU: a fork does not copy these.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import ClassVar

SETTLE_S = 0.1  # time for OpenMP threads to fall asleep: they spin for a moment after each operation
_THREADS = Path("/proc/self/task")


def check_fork() -> None:
    """Warn once in a forked process if torch's next operation may hang.

    The warning points at the caller's caller. GNU OpenMP keeps its threads between operations. A fork copies
    the records of these threads, but not the threads. The first parallel operation of the child waits for
    them forever. CUDA refuses to work in such a child.
    """
    causes = _Forks.causes()
    if causes and os.getpid() not in _Forks.warned:
        _Forks.warned.add(os.getpid())
        warnings.warn(
            f"this process was forked from one with {' and '.join(causes)}: torch hangs or fails here. Start "
            "processes with khop.launch or another start by spawn, e.g. "
            'multiprocessing.get_context("spawn").Process',
            RuntimeWarning,
            stacklevel=3,
        )


class _Forks:
    """State of this process, copied into its forks."""

    had_openmp = False  # at the last fork
    lost_openmp = False  # in the process that forked this one, or in an earlier one
    warned: ClassVar[set[int]] = set()  # processes

    @classmethod
    def before(cls) -> None:
        cls.had_openmp = "torch" in sys.modules and _has_openmp_threads()

    @classmethod
    def after_in_child(cls) -> None:
        cls.lost_openmp = cls.lost_openmp or cls.had_openmp

    @classmethod
    def causes(cls) -> list[str]:
        import torch  # `import khop` loads this module, and must not load torch

        openmp = cls.lost_openmp and torch.get_num_threads() > 1  # one thread starts no others
        cuda = torch.cuda._is_in_bad_fork()
        return [
            name for name, lost in (("live threads of OpenMP", openmp), ("CUDA initialized", cuda)) if lost
        ]


@cache
def watch_forks() -> None:
    """From now on, record at each fork of this process the things that the child will lack."""
    os.register_at_fork(before=_Forks.before, after_in_child=_Forks.after_in_child)


def _has_openmp_threads() -> bool:
    """Return True if GNU OpenMP threads wait for work, or if it is unknown whether native threads rest."""
    end = time.monotonic() + SETTLE_S
    while True:
        code = _code_of_openmp()
        resting, num_running = _native_threads()
        if any(address in code_range for code_range in code for address in resting):
            return True
        if not code or num_running == 0:
            return False
        if time.monotonic() > end:
            return True
        time.sleep(SETTLE_S / 50)


def _code_of_openmp() -> list[range]:
    """Return address ranges of libgomp's code; empty if it is not loaded. Other runtimes survive a fork."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = [line.split()[0] for line in lines if "libgomp" in line and " r-xp " in line]
    return [range(*(int(end, 16) for end in addresses.split("-"))) for addresses in found]


def _native_threads() -> tuple[list[int], int]:
    """Return the kernel wait addresses of threads not started by Python, and the number that are running."""
    import threading  # only a fork needs it

    of_python = {thread.native_id for thread in threading.enumerate()}
    resting, num_running = [], 0
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        if int(thread.name) in of_python:
            continue
        try:
            *_, last = (thread / "syscall").read_text().split()
        except (OSError, ValueError):  # it has just ended, or this system has no such file
            continue
        if last == "running":
            num_running += 1
        else:
            resting.append(int(last, 16))
    return resting, num_running
