"""Counts of the kernels that Triton compiles. Later runs on the machine read them from its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import triton


@contextmanager
def compilations_told(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the number of kernels compiled in the block so far, after each, in any thread.

    A kernel that Triton's cache on disk holds is not compiled, and not counted. `tell` is never called with
    Triton 3.3, which has no listener, or if another listener is set.
    """
    knobs = getattr(getattr(triton, "knobs", None), "compilation", None)
    if knobs is None or getattr(knobs, "listener", knobs) is not None:
        yield
        return
    count, lock = 0, Lock()

    def compiled(*, cache_hit: bool, **_: object) -> None:
        nonlocal count
        if not cache_hit:
            with lock:
                count += 1
                tell(count)

    knobs.listener = compiled
    try:
        yield
    finally:
        knobs.listener = None
