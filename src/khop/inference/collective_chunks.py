"""Chunks for ranks that exchange rows: the ranks run in lockstep, because batches need remote rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from torch import Tensor

from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.exchange.lanes import Lanes
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.inference.chunk_bounds import CHUNK_EDGES
from khop.inference.chunks import Progress, unwatched
from khop.inference.dynamic_chunks import DynamicChunks, Made, Sharing, SizeOf, Taken
from khop.inference.stages import VALUES, LayerStore, Stage
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight
from khop.runtime.group import ALONE, Group
from khop.schema import ColumnSpec, NodeType, Type


@dataclass(frozen=True)
class CollectiveChunks:
    """Sharing where each rank computes the chunks of its own partitions, one per round.

    All ranks make the same number of rounds. A rank without chunks left makes an empty one, because the other
    ranks still request rows from it.
    """

    lanes: Lanes
    in_flight: InFlight

    @property
    def group(self) -> Group:
        """The ranks that hold the graph."""
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
        """Implement `Sharing`. Prefetch ignores bytes: sizes differ, and ranks must stay in lockstep."""
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

    chunk_size: int = 1024  # nodes or links computed at a time
    progress: Progress = unwatched
    in_flight: InFlight = FEW_IN_FLIGHT
    group: Group = ALONE
    lanes: Lanes | None = None  # the graph's, if ranks hold parts of it
    chunk_edges: int = CHUNK_EDGES  # edges of a chunk's nodes, in exact evaluation

    def sharing(self, graph: GraphStore, features: FeatureStore) -> Sharing:
        """Choose how ranks share the chunks."""
        return sharing_of(graph, features, self.lanes, self.group, self.in_flight)


def sharing_of(
    graph: GraphStore, features: FeatureStore, lanes: Lanes | None, group: Group, in_flight: InFlight
) -> Sharing:
    """Choose how ranks share chunks: in lockstep if they exchange rows in lanes, else dynamically.

    ValueError if the stores ask other ranks and no lanes are given.
    """
    if lanes is not None:
        return CollectiveChunks(lanes, in_flight)
    if graph.is_collective or features.is_collective:
        raise ValueError(
            "lanes None: the graph is partitioned across ranks, which compute its rows together; give "
            "lanes=graph.lanes, of the khop.Graph"
        )
    return DynamicChunks(group, in_flight)


def rows_of_ranks(layer: Sequence[Stage], own: Mapping[NodeType, Tensor], lanes: Lanes) -> FeatureStore:
    """Return a store over the rows of a layer on all ranks; `own` has this rank's. A gather is collective."""
    rank, ranks = lanes.group.rank, lanes.group.world_size
    bounds: dict[Type, tuple[int, ...]] = {stage.node_type: rank_bounds(stage, ranks) for stage in layer}
    specs: dict[Type, dict[str, ColumnSpec]] = {
        stage.node_type: {VALUES: ColumnSpec(stage.entry.dtype, tuple(stage.like.shape[1:]))}
        for stage in layer
    }
    held: dict[Type, dict[str, Sequence[Tensor]]] = {t: {VALUES: (own[t],)} for t in own}
    return PartitionedFeatures(held, specs, bounds, PartitionOwners(ranks, rank, ranks), lanes)
