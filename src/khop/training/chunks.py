"""Chunks of nodes: batches made ahead of the model, shared among the ranks, their rows put on a shelf."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from khop.batch import Batch, Change, num_bytes
from khop.distributed.group import Group
from khop.draw import DrawKey
from khop.features.store import FeatureStore
from khop.loading.columns import ColumnChoice, gather_columns
from khop.loading.ordered_map import InFlight, ordered_map
from khop.sampling.sampler import Sampler, Seeds
from khop.schema import NodeType
from khop.training.stages import Shelf, Stage

Progress = Callable[[int, int], None]  # (done, total)
RowsOf = Callable[[Batch], Tensor]  # (seeds, ...), of the nodes of a chunk


def unwatched(done: int, total: int) -> None:
    """A progress that nobody watches."""


class MakesBatches(Protocol):
    """What a meter has made of the chunks of a stage."""

    @property
    def move(self) -> Change:
        """To where the model is."""
        ...

    def made(self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None) -> Batch:
        """The batch where it was made, as a thread does that works ahead."""
        ...


@dataclass(frozen=True)
class Chunks:
    """What makes a batch of some nodes."""

    sampler: Sampler
    features: FeatureStore
    columns: ColumnChoice
    key: DrawKey
    move: Change

    def made(self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None) -> Batch:
        """The batch where it was made, as a thread does that works ahead."""
        limits = None if times is None else {node_type: times}
        seeds = Seeds({node_type: nodes}, {node_type: nodes}, limits)
        sample = self.sampler.sample(seeds, self.key)
        sample, columns, seed_columns = gather_columns(self.features, self.columns, sample)
        return Batch(sample, seeds.nodes, columns, seed_columns, 0, 0, seeds.count)

    def batch(self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None) -> Batch:
        """The batch where the model is."""
        return self.made(node_type, nodes, times).map(self.move)


@dataclass(frozen=True)
class _Made:
    """A chunk that this rank has taken, and its batch."""

    turn: int  # among the chunks that were missing
    chunk: int
    batch: Batch


class Meter:
    """Has the rows of stage after stage computed and says how far that has come."""

    def __init__(
        self, progress: Progress, total: int, group: Group, in_flight: InFlight, done: int = 0
    ) -> None:
        self._progress = progress
        self._total = total
        self._group = group
        self._in_flight = in_flight
        self._done = done
        self._told = -1

    def rows(self, stage: Stage, shelf: Shelf, chunks: MakesBatches, rows_of: RowsOf) -> Tensor:
        """(count, ...) on the CPU: `rows_of` every chunk, made by the rank that comes first. Collective."""
        what = f"computing layer {stage.layer + 1} of {stage.node_type}"
        with self._group.exchanging(what), closing(shelf.open(stage)) as place:
            before = stage.count - sum(stage.size(chunk) for chunk in place.missing)
            for made in self._taken(stage, place.missing, chunks):
                place.put(made.chunk, rows_of(made.batch.map(chunks.move)).cpu())
                self._tell(self._done + min(stage.count, before + (made.turn + 1) * stage.chunk_size))
            out = place.finished()
        self._done += stage.count
        if stage.count:
            self._tell(self._done)
        return out

    def _taken(self, stage: Stage, missing: range | list[int], chunks: MakesBatches) -> Iterator[_Made]:
        """The chunks that this rank gets, their batches made ahead."""
        turn_of, is_over = self._group.dealer(), threading.Event()

        def made(_: int) -> _Made | None:
            turn = len(missing) if is_over.is_set() else turn_of()
            if turn >= len(missing):
                is_over.set()
                return None
            chunk = missing[turn]
            nodes, times = stage.nodes_of(chunk), stage.times_of(chunk)
            return _Made(turn, chunk, chunks.made(stage.node_type, nodes, times))

        ahead = ordered_map(made, range(len(missing)), self._in_flight, _num_bytes)
        with closing(ahead):
            for each in ahead:
                if each is not None:  # a thread that asked later may still have got the last chunk
                    yield each

    def _tell(self, done: int) -> None:
        """Never backwards: threads take chunks out of order."""
        if done > self._told:
            self._told = done
            self._progress(done, self._total)


def _num_bytes(made: _Made | None) -> int:
    return 0 if made is None else num_bytes(made.batch)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module's mode is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
