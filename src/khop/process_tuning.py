"""Process settings for training on a CPU: allocator, OpenMP threads, core counts, warnings about forks.

The command applies the settings before it imports torch, a script with its first epoch of batches.
Environment variables that configure the allocator or OpenMP take precedence.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings
from functools import cache
from pathlib import Path
from typing import ClassVar

# mallopt(3) of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = (1 << 31) - 1  # mallopt takes an int

_SMALL_BLOCK = 1 << 18  # bytes; larger blocks are returned when memory is scarce

_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux
_HUGE_PAGE_BYTES = 1 << 21
_HEAP_BYTES = 1 << 30  # below _LARGEST, so that it is part of the heap

# Variables by which users choose how OpenMP waits, or configure or replace the allocator.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_ALLOCATION = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")
_LOADED = Path("/proc/self/maps")


def tune_before_torch() -> None:
    """Tune the allocator, and set the variable that OpenMP reads when torch loads it."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    tune_memory()


@cache
def tune_for_training() -> None:
    """Tune this process, once, as the command does at its start. Torch may have been imported before."""
    tune_memory()
    if not any(name in os.environ for name in _WAITING) and not rest_openmp():
        warnings.warn(
            "idle OpenMP threads use the cores that sampler threads need: export OMP_WAIT_POLICY=passive",
            stacklevel=2,
        )


@cache
def tune_memory() -> bool:
    """Let large tensors reuse memory that this process has already had; return True if a setting changed.

    By default the C library returns every large block to the kernel and requests a new one. The kernel zeroes
    its pages one fault at a time, which takes a quarter of a training step on a CPU. After this call freed
    memory stays with the process, and the first GiB of its heap requests huge pages.

    Only glibc has the required functions; with other C libraries nothing changes.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" in tunables or any(name in os.environ for name in _ALLOCATION):
        return False
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    kept = libc.mallopt(_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
    if kept:
        _request_huge_pages(libc)
    return bool(kept)


def return_freed_memory() -> None:
    """Undo `tune_memory` where memory is scarce: large blocks go back to the kernel when they are freed.

    Settings of the user's environment stay. The heap shrinks at once.
    """
    if not tune_memory():
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _SMALL_BLOCK)
    libc.mallopt(_TRIM_THRESHOLD, _SMALL_BLOCK)
    libc.malloc_trim(0)


def _request_huge_pages(libc: ctypes.CDLL) -> None:
    """Grow the heap once, in address space only: pages are allocated when written, huge if allowed."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = libc.malloc(_HEAP_BYTES)
    if block is None:
        return
    first = -(-block // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    libc.madvise(first, block + _HEAP_BYTES - first, _HUGE_PAGES)
    libc.free(block)


def rest_openmp() -> bool:
    """Let idle threads of a loaded OpenMP sleep within microseconds; return False if one cannot be set.

    By default they spin for about a millisecond (GNU) or 200 (LLVM, Intel) after each operator, on the cores
    that sampler threads need. `OMP_WAIT_POLICY` no longer has an effect once OpenMP is loaded.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1:
        return True
    for path in _openmp_libraries():
        library = ctypes.CDLL(path)
        if hasattr(library, "kmp_set_blocktime"):  # LLVM and Intel: threads of this thread's teams
            library.kmp_set_blocktime(0)
        elif hasattr(library, "GOMP_parallel"):
            _oversubscribe(library)
        else:
            return False
    return True


def _openmp_libraries() -> set[str]:
    lines = _LOADED.read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return {path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}


def _oversubscribe(libgomp: ctypes.CDLL) -> None:
    """Give GNU OpenMP more threads than cores, all asleep.

    Its threads then spin 1,000 times instead of 300,000 (`gomp_throttled_spin_count_var` in its wait.h).
    The threads belong to a thread that never ends.
    """
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL)
    threads = len(os.sched_getaffinity(0)) + 1
    started = threading.Event()

    def hold() -> None:
        libgomp.GOMP_parallel(nothing, None, threads, 0)
        started.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="khop-openmp", daemon=True).start()
    started.wait()


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


CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # "<microseconds or max> <period>", in containers


def allowed_cores() -> int:
    """Return the number of cores that this process may use; all on a system without affinity (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def usable_cores(limit: Path = CGROUP_LIMIT) -> int:
    """Return the number of cores that this process may use, limited by the container's CPU quota."""
    cores = allowed_cores()
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def cores_of_rank(ranks_here: int) -> int:
    """Return the number of cores per rank, for `ranks_here` ranks on this machine."""
    return max(1, usable_cores() // ranks_here)


def sampler_threads(cores: int, device_type: str = "cpu") -> int:
    """Return the number of threads that make batches while training uses all `cores`: about a quarter.

    If a GPU computes, all cores but two: one launches its work, one reads results. The minimum is two, unless
    there is only one core. A batch waits for memory more than it computes, and on two cores two threads are
    the fastest in benchmarks/threads.py.
    """
    return min(cores, max(2, cores // 4 if device_type == "cpu" else cores - 2))
