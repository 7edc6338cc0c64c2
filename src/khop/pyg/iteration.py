"""An epoch of a torch_geometric loader on threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from khop.loading.ordered_map import InFlight, ordered_map
from khop.process_tuning import tune_for_training
from khop.pyg.columns import num_bytes
from khop.pyg.keyed import Draws

Sampled = Any  # a sampler's output
Batch = Any  # a data object, or the result of a transform


@dataclass(frozen=True)
class Work:
    """The input of one batch."""

    index: Tensor  # int64 (seeds), indices into the loader's input
    draws: Draws


def epoch(
    loader: Any, sample: Callable[[Work], Sampled], join: Callable[[Sampled], Batch]
) -> Iterator[Batch]:
    """Yield the batches of one epoch, in order; without workers each is made on request.

    With workers, `join` runs in the worker if the loader has `filter_per_worker`, else in the consumer. The
    draws are seeded from torch's generator now, not at the first batch.
    """
    tune_for_training()
    stages = _Stages(sample, join, loader.filter_per_worker)
    works = _works(iter(loader._index_sampler), Draws.from_torch(loader.generator))
    if loader.num_workers == 0:
        return (stages.here(_pinned(loader, stages.ahead(work))) for work in works)
    return _on_threads(loader, stages, list(works))


@dataclass(frozen=True)
class _Stages:
    """The stages of a batch: work done ahead, and work at the consumer."""

    sample: Callable[[Work], Sampled]
    join: Callable[[Sampled], Batch]
    joins_ahead: bool

    def ahead(self, work: Work) -> Any:
        sampled = self.sample(work)
        return self.join(sampled) if self.joins_ahead else sampled

    def here(self, made: Any) -> Batch:
        return made if self.joins_ahead else self.join(made)


def _works(indices: Iterator[Any], draws: Draws) -> Iterator[Work]:
    position = 0
    for step, index in enumerate(indices):
        seeds = torch.as_tensor(index, dtype=torch.int64).view(-1)
        yield Work(seeds, replace(draws, step=step, position=position))
        position += seeds.numel()


def _on_threads(loader: DataLoader[int], stages: _Stages, works: list[Work]) -> Generator[Batch, None, None]:
    threads = loader.num_workers
    in_flight = InFlight(threads, threads * (loader.prefetch_factor or 2))
    made = ordered_map(partial(_Worker(loader).made, stages.ahead), works, in_flight, num_bytes)
    with closing(made):
        yield from map(stages.here, made)


class _Worker:
    """Batch maker shared by threads. Each thread calls `worker_init_fn` before its first batch."""

    def __init__(self, loader: DataLoader[int]) -> None:
        self._loader = loader
        self._numbers = count()
        self._local = threading.local()

    def made(self, ahead: Callable[[Work], Any], work: Work) -> Any:
        if not hasattr(self._local, "number"):
            self._local.number = next(self._numbers)
            if self._loader.worker_init_fn is not None:
                self._loader.worker_init_fn(self._local.number)
        return _pinned(self._loader, ahead(work))


def _pinned(loader: DataLoader[int], made: Any) -> Any:
    """Move a batch to pinned memory if the loader asks for it and there is a GPU."""
    can_pin = loader.pin_memory and torch.cuda.is_available() and hasattr(made, "pin_memory")
    return made.pin_memory() if can_pin else made
