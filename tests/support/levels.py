"""Running a piece of a test at every dispatch level of the native core that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import khop._core as _core


@contextmanager
def dispatch_level(name: str) -> Iterator[None]:
    """The native core with the vector instructions of one level."""
    before = _core.dispatch_level()
    _core.set_dispatch_level(name)
    try:
        yield
    finally:
        _core.set_dispatch_level(before)


LEVELS = tuple(_core.dispatch_levels())
