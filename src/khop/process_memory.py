"""What a process that trains on a CPU does about its memory, by its own choice."""

from __future__ import annotations

import ctypes

# mallopt(3) of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = (1 << 31) - 1  # mallopt takes an int

_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux
_HUGE_PAGE_BYTES = 1 << 21
_HEAP_BYTES = 1 << 30  # below _LARGEST, so that it is part of the heap


def tune_memory() -> bool:
    """Let large tensors reuse memory that this process has already had; whether anything was changed.

    By default the C library gives every large block back to the kernel and takes a new one, whose pages are
    zeroed one fault at a time: a quarter of a training step on a CPU. After this call freed memory stays with
    the process, and the first GiB of its heap asks for huge pages. khop's command does it when it starts; a
    script may, once, before it makes tensors; the library never does. Only glibc has what it takes: elsewhere
    nothing changes.
    """
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    kept = libc.mallopt(_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
    if kept:
        _ask_for_huge_pages(libc)
    return bool(kept)


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Make the heap grow once, by addresses alone: pages come when they are written, huge where allowed."""
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
