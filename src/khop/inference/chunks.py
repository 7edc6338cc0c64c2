"""Chunks of nodes in layer-wise inference: their distribution over ranks and threads, and their batches.

If ranks exchange rows, all of them run in lockstep, because a batch may need remote rows.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from khop.batch import Batch, Change, Columns, Sample, num_bytes
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.processes.group import ALONE, Group, shared_counter
from khop.draw import DrawKey
from khop.graph.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.inference.stages import CHUNK_EDGES, VALUES, LayerStore, MemoryStore, Stage
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight, ordered_map
from khop.loading.source import BatchRequest
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import Seeds
from khop.schema import ColumnSpec, NodeType, Type
from khop.servers.graph import source_of

Made = TypeVar("Made")
SizeOf = Callable[[Made], int]  # in bytes


@dataclass(frozen=True)
class Taken(Generic[Made]):
    """A chunk assigned to this rank."""

    chunk: int
    made: Made  # of its rows
    done: int  # chunks taken so far by all ranks together


@dataclass(frozen=True)
class DynamicChunks:
    """Dynamic distribution of chunks over ranks by a shared counter: faster ranks compute more chunks.

    The distribution does not change any row.
    """

    group: Group = ALONE
    in_flight: InFlight = FEW_IN_FLIGHT

    @property
    def threads_each(self) -> int:
        """One, because each thread makes separate chunks."""
        return 1

    def layer_store(self) -> LayerStore:
        """Make a store of all rows, one copy per machine: any rank may need any row."""
        return MemoryStore(self.group)

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """Yield the missing chunks assigned to this rank, each with the result of `make` for its rows.

        Threads make chunks ahead. Collective: all ranks pass the same stage and the same missing chunks.
        """
        turn_of, is_over = shared_counter(self.group), threading.Event()

        def made(_: int) -> Taken[Made] | None:
            turn = len(missing) if is_over.is_set() else turn_of()
            if turn >= len(missing):
                is_over.set()
                return None
            chunk = missing[turn]
            return Taken(chunk, make(stage.span(chunk)), turn + 1)

        def bytes_of(each: Taken[Made] | None) -> int:
            return 0 if each is None else size_of(each.made)

        ahead = ordered_map(made, range(len(missing)), self.in_flight, bytes_of)
        with closing(ahead):
            for each in ahead:
                if each is not None:  # results are in order of requests, so a chunk may follow a None
                    yield each


def check_equal_chunks(group: Group, stage: Stage) -> None:
    """Check that all ranks divide a stage into the same chunks; else rows would be missing. Collective.

    ValueError on every rank if one differs.
    """
    if group.world_size == 1:
        return
    digest = hashlib.sha256(torch.tensor(stage.starts).numpy().tobytes()).digest()[:8]
    found = group.gather(torch.tensor([stage.num_chunks, int.from_bytes(digest, "little", signed=True)]))
    differing = (found != found[0]).any(1).nonzero().flatten().tolist()
    if differing:
        counts = ", ".join(map(str, found[:, 0].tolist()))
        raise ValueError(
            f"layer {stage.layer + 1} of {stage.node_type!r}: rank {differing[0]} has other chunks of rows "
            f"than rank 0 (chunks by rank: {counts}); give all ranks the same nodes, chunk_size and "
            "chunk_edges"
        )


Progress = Callable[[int, int], None]  # (done, total)
RowsOf = Callable[[Batch], Tensor]  # (seeds, ...): rows of a chunk's nodes


def unwatched(done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Chunk:
    """Position of a chunk in a computation, for servers that make its batch and for errors."""

    layer: int
    first_row: int
    words: str


ONE_CHUNK = Chunk(0, 0, "computing rows of some nodes")


class ChunkSource(Protocol):
    """Source of the batches of a stage's chunks."""

    @property
    def works_ahead(self) -> bool:
        """True if threads make batches ahead; False if a batch is valid until the next one is made."""
        ...

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
    works_ahead = True

    def with_threads(self, threads: int) -> Chunks:
        """Return a source that draws the same batches with up to `threads` threads each."""
        return replace(self, sampler=self.sampler.with_threads(threads))

    def made(
        self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None, chunk: Chunk = ONE_CHUNK
    ) -> Batch:
        """Make the batch of some nodes on the sampler's device, e.g. in a thread that works ahead."""
        limits = None if times is None else {node_type: times}
        # A disjoint tree is keyed by its node's original id, so it does not depend on order and numbering.
        originals = None if self._draws_by_ids else self.sampler.graph.original_ids(node_type)
        positions = nodes if originals is None else originals[nodes]
        seeds = Seeds({node_type: nodes}, {node_type: positions}, limits)
        sample, columns, seed_columns = drawn(
            self.sampler, self.features, self.columns, seeds, self.key, chunk
        )
        sample = replace(
            sample, seed_positions={}, seed_times=limits or {}
        )  # nodes have no position in an epoch
        return Batch(sample, seeds.nodes, columns, seed_columns, 0, 0, seeds.count)

    @property
    def _draws_by_ids(self) -> bool:
        """True if positions are not read: servers key draws by original ids, but trees by positions."""
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

    If the graph is on servers, they make it, and only columns of this process, such as rows of a layer, are
    gathered in this process.
    """
    if sampler.graph.servers is None:
        return gather_columns(features, columns, sampler.sample(seeds, key))
    source = source_of(LocalSource(sampler, features, columns, torch.device("cpu")))
    made = source.make(BatchRequest.of(seeds, key, chunk.layer, chunk.first_row, chunk.words))
    return made.sample, made.columns, made.seed_columns


class ChunkMeter:
    """Computes the rows of one stage after another and reports progress."""

    def __init__(self, progress: Progress, total: int, sharing: Sharing, done: int = 0) -> None:
        self._progress = progress
        self._total = total
        self._sharing = sharing
        self._done = done
        self._told = -1

    def rows(self, stage: Stage, layer_store: LayerStore, chunks: ChunkSource, rows_of: RowsOf) -> Tensor:
        """Apply `rows_of` to all chunks; return the layer store's rows. Collective."""
        together = chunks.with_threads(self._sharing.threads_each)

        def made(rows: slice) -> Batch:
            chunk = Chunk(stage.layer, rows.start, f"{words}, from row {rows.start:,}")
            return together.made(stage.node_type, stage.nodes_of(rows), stage.times_of(rows), chunk)

        def ahead(rows: slice) -> Batch | slice:
            return made(rows) if chunks.works_ahead else rows

        words = f"computing layer {stage.layer + 1} of {stage.node_type}"
        with self._sharing.group.exchanging(words):
            check_equal_chunks(self._sharing.group, stage)
            with closing(layer_store.open(stage)) as place:
                before = stage.count - sum(stage.size(chunk) for chunk in place.missing)
                with closing(self._sharing.taken(stage, place.missing, ahead, _num_bytes)) as taken:
                    for each in taken:
                        batch = made(each.made) if isinstance(each.made, slice) else each.made
                        place.put(each.chunk, rows_of(batch.map(chunks.move)))
                        done = (stage.count - before) * each.done // len(place.missing)
                        self._tell(self._done + before + done)
                out = place.finished()
        self._done += stage.count
        if stage.count:
            self._tell(self._done)
        return out

    def _tell(self, done: int) -> None:
        """Report progress unless it would decrease, because threads process chunks out of order."""
        if done > self._told:
            self._told = done
            self._progress(done, self._total)


def _num_bytes(made: Batch | slice) -> int:
    return 0 if isinstance(made, slice) else num_bytes(made)


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


@dataclass(frozen=True)
class CollectiveChunks:
    """Distribution of chunks by partition: each rank computes those of its partitions, one per round.

    All ranks make the same number of rounds. A rank without remaining chunks makes empty ones, because the
    other ranks still request rows from it.
    """

    lanes: Lanes
    in_flight: InFlight

    @property
    def group(self) -> Group:
        """The ranks that store the graph."""
        return self.lanes.group

    @property
    def threads_each(self) -> int:
        """Threads per chunk: the lanes share the threads equally."""
        return max(1, self.in_flight.threads // self.lanes.count)

    def layer_store(self) -> LayerStore:
        """Make a store in which each rank keeps the rows it computed and the others request them."""
        return PartitionedLayerStore(self.lanes)

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """Yield the missing chunks of this rank.

        Prefetch ignores bytes: sizes differ, and ranks must stay in lockstep.
        """
        of_ranks = [
            missing[bisect_left(missing, share.start) : bisect_left(missing, share.stop)]
            for share in shares(stage, self.group.world_size)
        ]
        mine = of_ranks[self.group.rank]
        rounds = range(max(map(len, of_ranks)))

        def made(turn: int) -> Made:
            return make(stage.span(mine[turn]) if turn < len(mine) else slice(0, 0))

        with closing(self.lanes.map(made, rounds, self.in_flight.prefetch, _round)) as ahead:
            for turn, each in enumerate(ahead):
                if turn < len(mine):
                    yield Taken(mine[turn], each, sum(min(turn + 1, len(chunks)) for chunks in of_ranks))


Sharing = DynamicChunks | CollectiveChunks


@dataclass(frozen=True)
class PartitionedLayerStore:
    """Layer store in memory in which each rank keeps the rows that it computed."""

    lanes: Lanes

    def open(self, stage: Stage) -> LayerPartition:
        """Allocate memory for the rows of this rank."""
        group = self.lanes.group
        bounds = rank_bounds(stage, group.world_size)
        return LayerPartition(stage, bounds[group.rank], bounds[group.rank + 1])

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """Return a store over the rows of all ranks."""
        return rows_of_ranks(layer, rows, self.lanes)

    def release(self, layer: int) -> None:
        """Do nothing: Python frees rows after their last use."""


class LayerPartition:
    """A contiguous range of a stage's rows."""

    def __init__(self, stage: Stage, first: int, last: int) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._first = first
        self._rows = stage.like.new_empty((last - first, *stage.like.shape[1:]))

    def put(self, chunk: int, rows: Tensor) -> None:
        """Copy the rows into place."""
        span = self._stage.span(chunk)
        self._rows[span.start - self._first : span.stop - self._first] = rows

    def finished(self) -> Tensor:
        """Return the rows of this rank; rows of other ranks are fetched when they are read."""
        return self._rows

    def close(self) -> None:
        """Do nothing: Python frees all resources."""


def _round(turn: int) -> tuple[int, int]:
    """Return the place of a round among exchanges: rounds belong to no epoch."""
    return 0, turn


def shares(stage: Stage, ranks: int) -> list[range]:
    """Chunks of each rank: the chunks of its partitions, or an even share of one partition's chunks."""
    pieces = stage.pieces or (0, stage.count)
    firsts = [bisect_left(stage.starts, row) for row in pieces]
    holders = PartitionOwners(len(pieces) - 1, world_size=ranks)

    def share(rank: int) -> range:
        parts = holders.parts_of(rank)
        first, count = firsts[parts.start], firsts[parts.stop] - firsts[parts.start]
        beside = holders.ranks_of(parts.start)  # several only if each of them holds one part
        place = rank - beside.start
        return range(first + count * place // len(beside), first + count * (place + 1) // len(beside))

    return [share(rank) for rank in range(ranks)]


def rank_bounds(stage: Stage, ranks: int) -> tuple[int, ...]:
    """(ranks + 1): first row of each rank, then the end of the last rank's rows."""
    return (*(stage.starts[chunks.start] for chunks in shares(stage, ranks)), stage.count)


@dataclass(frozen=True)
class InferenceWork:
    """The size of chunks, and the progress, prefetching and ranks of a computation of many rows."""

    chunk_size: int = 1024  # nodes or links per chunk
    progress: Progress = unwatched
    in_flight: InFlight = FEW_IN_FLIGHT
    group: Group = ALONE
    lanes: Lanes | None = None  # the graph's lanes, if it is partitioned
    chunk_edges: int = CHUNK_EDGES  # edges of a chunk's nodes, in exact evaluation

    def sharing(self, graph: GraphStore, features: FeatureStore) -> Sharing:
        """Choose how ranks share the chunks."""
        return sharing_of(graph, features, self.lanes, self.group, self.in_flight)


def sharing_of(
    graph: GraphStore, features: FeatureStore, lanes: Lanes | None, group: Group, in_flight: InFlight
) -> Sharing:
    """Choose how ranks share chunks: in lockstep if they exchange rows in lanes, else dynamically.

    Raises ValueError if the stores are collective and no lanes are given.
    """
    if lanes is not None:
        return CollectiveChunks(lanes, in_flight)
    if graph.is_collective or features.is_collective:
        raise ValueError(
            "lanes None: the graph is partitioned across ranks, which must compute its rows together; give "
            "lanes=graph.lanes, of the khop.Graph"
        )
    return DynamicChunks(group, in_flight)


def rows_of_ranks(layer: Sequence[Stage], own: Mapping[NodeType, Tensor], lanes: Lanes) -> FeatureStore:
    """Return a store over a layer's rows on all ranks; `own` has this rank's rows. Gathers are collective."""
    rank, ranks = lanes.group.rank, lanes.group.world_size
    bounds: dict[Type, tuple[int, ...]] = {stage.node_type: rank_bounds(stage, ranks) for stage in layer}
    specs: dict[Type, dict[str, ColumnSpec]] = {
        stage.node_type: {VALUES: ColumnSpec(stage.entry.dtype, tuple(stage.like.shape[1:]))}
        for stage in layer
    }
    held: dict[Type, dict[str, Sequence[Tensor]]] = {t: {VALUES: (own[t],)} for t in own}
    return PartitionedFeatures(held, specs, bounds, RankOwners(PartitionOwners(ranks, rank, ranks), lanes))
