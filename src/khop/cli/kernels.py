"""Lines on stderr while the kernels of a GPU are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import torch

from khop.cli.lines import tell
from khop.kernels.choice import why_no_kernels

EVERY_S = 5.0


@contextmanager
def kernel_lines(rank: int, device: torch.device) -> Iterator[None]:
    """Print the progress of compilations in the block on rank 0, if kernels run on its device.

    Nothing is printed if the cache has all kernels.
    """
    if rank > 0 or device.type != "cuda" or why_no_kernels(device.index) is not None:
        yield
        return
    from khop.kernels.triton.compilations import compilations_told

    with compilations_told(CompilationLines()):
        yield


class CompilationLines:
    """A line for the first kernel that is compiled, and then at most one in EVERY_S seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._next_s = clock()

    def __call__(self, count: int) -> None:
        """Handle the compilation of one more kernel, of `count` so far."""
        if self._clock() >= self._next_s:
            tell(f"compiling GPU kernels, once on this machine: {count} so far")
            self._next_s = self._clock() + EVERY_S
