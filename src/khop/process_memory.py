"""Memory settings for a process that trains on a CPU, applied only on request.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import ctypes

# mallopt(3) of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = (1 << 31) - 1  # mallopt takes an int

_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux
_HUGE_PAGE_BYTES = 1 << 21
_TUNED: list[bool] = []  # in this process
_HEAP_BYTES = 1 << 30  # below _LARGEST, so that it is part of the heap


def tune_memory() -> bool:
    """Let large tensors reuse memory that this process has already had; return True if a setting changed.

    By default the C library returns every large block to the kernel and requests a new one. The kernel zeroes
    its pages one fault at a time, which takes a quarter of a training step on a CPU. After this call freed
    memory stays with the process, and the first GiB of its heap requests huge pages.

    The `khop` command calls it at startup, and scripts by `khop.tune_process`. Only glibc has the required
    functions; with other C libraries nothing changes.
    """
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    kept = libc.mallopt(_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
    if kept:
        _ask_for_huge_pages(libc)
        _TUNED.append(True)
    return bool(kept)


def is_tuned() -> bool:
    """Return whether large blocks of memory are kept: tuned, or by a C library that is not glibc."""
    return bool(_TUNED) or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
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
