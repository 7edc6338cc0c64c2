"""Counts of the kernels that Triton compiles: the first run on a machine, as its cache has them later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import triton


@contextmanager
def compilations_told(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the number of kernels compiled in the block so far, after each, in any thread.

    A kernel that Triton's cache on disk holds is not compiled, and not counted. Triton 3.3 tells nothing of
    it, and neither does a process in which something else listens already: then `tell` is never called.
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
