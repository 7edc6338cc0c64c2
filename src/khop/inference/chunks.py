"""Chunks of nodes: their batches are made ahead of the model, their rows go into a layer store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from khop.batch import Batch, Change, Columns, Sample, num_bytes
from khop.draw import DrawKey
from khop.features.store import FeatureStore
from khop.inference.dynamic_chunks import Sharing
from khop.inference.stages import LayerStore, Stage
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.source import BatchRequest
from khop.sampling.sampler import Sampler, Seeds
from khop.schema import NodeType
from khop.servers.source import source_of

Progress = Callable[[int, int], None]  # (done, total)
RowsOf = Callable[[Batch], Tensor]  # (seeds, ...): rows of a chunk's nodes


def unwatched(done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Chunk:
    """The place of a chunk in a computation, for servers that make its batch and for errors."""

    layer: int
    first_row: int
    words: str


ONE_CHUNK = Chunk(0, 0, "computing rows of some nodes")


class ChunkSource(Protocol):
    """Source of the batches of a stage's chunks."""

    @property
    def move(self) -> Change:
        """Move a tensor to the model's device."""
        ...

    def with_threads(self, threads: int) -> ChunkSource:
        """Return a source that draws the same batches with up to `threads` threads each."""
        ...

    def made(
        self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None, chunk: Chunk = ONE_CHUNK
    ) -> Batch:
        """Make the batch of some nodes on the sampler's device, e.g. in a thread that works ahead."""
        ...


@dataclass(frozen=True)
class Chunks:
    """Maker of batches for given nodes."""

    sampler: Sampler
    features: FeatureStore
    columns: ColumnChoice
    key: DrawKey
    move: Change

    def with_threads(self, threads: int) -> Chunks:
        """Return a source that draws the same batches with up to `threads` threads each."""
        return replace(self, sampler=self.sampler.with_threads(threads))

    def made(
        self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None, chunk: Chunk = ONE_CHUNK
    ) -> Batch:
        """Make the batch of some nodes on the sampler's device, e.g. in a thread that works ahead."""
        limits = None if times is None else {node_type: times}
        # A disjoint tree is keyed by its node's original id, independent of order and numbering.
        originals = None if self._draws_by_ids else self.sampler.graph.original_ids(node_type)
        positions = nodes if originals is None else originals[nodes]
        seeds = Seeds({node_type: nodes}, {node_type: positions}, limits)
        sample, columns, seed_columns = drawn(
            self.sampler, self.features, self.columns, seeds, self.key, chunk
        )
        return Batch(sample, seeds.nodes, columns, seed_columns, 0, 0, seeds.count)

    @property
    def _draws_by_ids(self) -> bool:
        """True if no position is read: servers key draws by original ids, but trees by positions."""
        return self.sampler.graph.servers is not None and self.sampler.settings().get("trees") != "disjoint"

    def batch(self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None) -> Batch:
        """Make the batch of some nodes on the model's device."""
        return self.made(node_type, nodes, times).map(self.move)


def drawn(
    sampler: Sampler,
    features: FeatureStore,
    columns: ColumnChoice,
    seeds: Seeds,
    key: DrawKey,
    chunk: Chunk,
) -> tuple[Sample, Columns, Columns]:
    """Return the sample of some seeds, the nodes' columns and the seeds' columns.

    Servers make it if they have the graph; then only columns of this process, as rows of a layer, are
    gathered here.
    """
    if sampler.graph.servers is None:
        return gather_columns(features, columns, sampler.sample(seeds, key))
    source = source_of(LocalSource(sampler, features, columns, torch.device("cpu")))
    made = source.make(BatchRequest.of(seeds, key, chunk.layer, chunk.first_row, chunk.words))
    return made.sample, made.columns, made.seed_columns


class Meter:
    """Computes the rows of one stage after another and reports progress."""

    def __init__(self, progress: Progress, total: int, sharing: Sharing, done: int = 0) -> None:
        self._progress = progress
        self._total = total
        self._sharing = sharing
        self._done = done
        self._told = -1

    def rows(self, stage: Stage, layer_store: LayerStore, chunks: ChunkSource, rows_of: RowsOf) -> Tensor:
        """Apply `rows_of` to all chunks; return the layer store's rows, on the CPU. Collective."""

        together = chunks.with_threads(self._sharing.threads_each)

        def made(rows: slice) -> Batch:
            chunk = Chunk(stage.layer, rows.start, f"{words}, from row {rows.start:,}")
            return together.made(stage.node_type, stage.nodes_of(rows), stage.times_of(rows), chunk)

        words = f"computing layer {stage.layer + 1} of {stage.node_type}"
        with self._sharing.group.exchanging(words), closing(layer_store.open(stage)) as place:
            before = stage.count - sum(stage.size(chunk) for chunk in place.missing)
            with closing(self._sharing.taken(stage, place.missing, made, num_bytes)) as taken:
                for each in taken:
                    place.put(each.chunk, rows_of(each.made.map(chunks.move)).cpu())
                    done = (stage.count - before) * each.done // len(place.missing)
                    self._tell(self._done + before + done)
            out = place.finished()
        self._done += stage.count
        if stage.count:
            self._tell(self._done)
        return out

    def _tell(self, done: int) -> None:
        """Report progress unless it would go backwards: threads take chunks out of order."""
        if done > self._told:
            self._told = done
            self._progress(done, self._total)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore the mode of every module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
