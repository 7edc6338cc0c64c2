"""Settings of a process that trains on a CPU: the memory allocator and the idle threads of OpenMP.

The command applies them before it imports torch, a script with its first epoch of batches. Variables of the
environment that configure the allocator or the waiting of OpenMP take precedence.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings
from functools import cache
from pathlib import Path

# mallopt(3) of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = (1 << 31) - 1  # mallopt takes an int

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
            "idle threads of OpenMP keep the cores busy that sample batches: export OMP_WAIT_POLICY=passive",
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
