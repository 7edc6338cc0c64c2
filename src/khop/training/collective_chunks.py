"""Chunks that ranks take in step: to make one, a rank asks the others for what lies with them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from torch import Tensor

from khop.distributed.group import Group
from khop.distributed.lanes import Lanes
from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.row_request import Type
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.loading.ordered_map import InFlight
from khop.schema import ColumnSpec, NodeType
from khop.training.dynamic_chunks import DynamicChunks, Made, Sharing, SizeOf, Taken
from khop.training.stages import VALUES, LayerStore, Stage


@dataclass(frozen=True)
class CollectiveChunks:
    """A rank takes the chunks of the parts that it holds, one in each round; all make the same rounds.

    A rank whose chunks have run out makes one of no rows, for the sake of what others ask it.
    """

    lanes: Lanes
    in_flight: InFlight

    @property
    def group(self) -> Group:
        """The ranks that hold the graph."""
        return self.lanes.group

    @property
    def threads_each(self) -> int:
        """Lanes share the threads."""
        return max(1, self.in_flight.threads // self.lanes.count)

    def layer_store(self) -> LayerStore:
        """Rows stay with the rank that has computed them; the others ask for those that they need."""
        return PartitionedLayerStore(self.lanes)

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """See `Sharing`. So many are made ahead, of whatever size: sizes differ, and ranks keep in step."""
        of_ranks = [
            missing[bisect_left(missing, share.start) : bisect_left(missing, share.stop)]
            for share in shares(stage, self.group.world_size)
        ]
        mine = of_ranks[self.group.rank]
        rounds = range(max(map(len, of_ranks)))

        def made(turn: int) -> Made:
            return make(stage.span(mine[turn]) if turn < len(mine) else slice(0, 0))

        with closing(self.lanes.map(made, rounds, self.in_flight.prefetch)) as ahead:
            for turn, each in enumerate(ahead):
                if turn < len(mine):
                    yield Taken(mine[turn], each, sum(min(turn + 1, len(chunks)) for chunks in of_ranks))


@dataclass(frozen=True)
class PartitionedLayerStore:
    """A shelf in memory that leaves rows with the rank that has computed them."""

    lanes: Lanes

    def open(self, stage: Stage) -> LayerPartition:
        """Room for those of this rank."""
        group = self.lanes.group
        bounds = rank_bounds(stage, group.world_size)
        return LayerPartition(stage, bounds[group.rank], bounds[group.rank + 1])

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """The rows of all ranks."""
        return rows_of_ranks(layer, rows, self.lanes)

    def release(self, layer: int) -> None:
        """Nothing: rows are freed when nobody reads them."""


class LayerPartition:
    """A stretch of a stage's rows."""

    def __init__(self, stage: Stage, first: int, last: int) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._first = first
        self._rows = stage.like.new_empty((last - first, *stage.like.shape[1:]))

    def put(self, chunk: int, rows: Tensor) -> None:
        """Copy them into place."""
        span = self._stage.span(chunk)
        self._rows[span.start - self._first : span.stop - self._first] = rows

    def finished(self) -> Tensor:
        """Those of this rank: what the others have is asked for when it is read."""
        return self._rows

    def close(self) -> None:
        """Nothing is held that Python does not free."""


def shares(stage: Stage, ranks: int) -> list[range]:
    """The chunks of each rank, one rank after another: those of its parts, or an even share of a part's."""
    pieces = stage.pieces or (0, stage.count)
    firsts = [bisect_left(stage.starts, row) for row in pieces]
    holders = PartitionOwners(len(pieces) - 1, world_size=ranks)

    def share(rank: int) -> range:
        parts = holders.parts_of(rank)
        first, count = firsts[parts.start], firsts[parts.stop] - firsts[parts.start]
        beside = holders.ranks_of(parts.start)  # several only where each holds one part
        place = rank - beside.start
        return range(first + count * place // len(beside), first + count * (place + 1) // len(beside))

    return [share(rank) for rank in range(ranks)]


def rank_bounds(stage: Stage, ranks: int) -> tuple[int, ...]:
    """(ranks + 1): where the rows of each rank begin, and where those of the last one end."""
    return (*(stage.starts[chunks.start] for chunks in shares(stage, ranks)), stage.count)


def sharing_of(
    graph: GraphStore | None, features: FeatureStore, group: Group, in_flight: InFlight
) -> Sharing:
    """How ranks share chunks: in step where one of the stores asks other ranks, else as they come."""
    for store in (graph, features):
        lanes: Lanes | None = getattr(store, "lanes", None)
        if lanes is not None:
            return CollectiveChunks(lanes, in_flight)
    return DynamicChunks(group, in_flight)


def rows_of_ranks(layer: Sequence[Stage], own: Mapping[NodeType, Tensor], lanes: Lanes) -> FeatureStore:
    """What all ranks have computed of a layer, of which this one has its own rows. A gather is collective."""
    rank, ranks = lanes.group.rank, lanes.group.world_size
    bounds: dict[Type, tuple[int, ...]] = {stage.node_type: rank_bounds(stage, ranks) for stage in layer}
    specs: dict[Type, dict[str, ColumnSpec]] = {
        stage.node_type: {VALUES: ColumnSpec(stage.entry.dtype, tuple(stage.like.shape[1:]))}
        for stage in layer
    }
    held: dict[Type, dict[str, Sequence[Tensor]]] = {t: {VALUES: (own[t],)} for t in own}
    return PartitionedFeatures(held, specs, bounds, PartitionOwners(ranks, rank, ranks), lanes)
