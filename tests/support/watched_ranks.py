"""Watches of several ranks in one process, under a clock that moves when somebody sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch.distributed import HashStore

from khop.distributed.processes import watch
from khop.distributed.processes.watch import HealthBoard, Watch


class Time:
    """A clock that goes when somebody sleeps; whoever speaks does so meanwhile."""

    def __init__(self, speaking: list[Watch]) -> None:
        self._now = 0.0
        self._speaking = speaking

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        for each in self._speaking:
            each.heartbeat.send()


@contextmanager
def ranks(world_size: int, silent: tuple[int, ...] = ()) -> Iterator[list[Watch]]:
    """The watches of ranks in this one process, each on host-<rank>; the silent ones do not beat."""
    store = HashStore()
    board = HealthBoard(store, store, world_size, "host-0:29500")
    watches = [Watch(board, rank, f"host-{rank}", 60.0) for rank in range(world_size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "time", Time([each for each in watches if each.rank not in silent]))
        yield watches
