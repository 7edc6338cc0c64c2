"""A loader's batches with static shapes, as the input of recorded training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from khop.loading.batch_slot import BatchSlot, StepInput
from khop.loading.source import LoopProgress, Position, State, request_of
from khop.loading.streams import Stream, Streams
from khop.sampling.neighbor import check_seeds, check_times
from khop.sampling.on_device.capacities import Capacities
from khop.sampling.sampler import KernelSampler
from khop.sampling.seeds import SeedOrder


@dataclass(frozen=True, eq=False)
class StaticRoom:
    """Buffers of a few batches with static shapes, and the stream that fills them."""

    sampler: KernelSampler  # over the graph on the CPU
    slots: tuple[BatchSlot, ...]
    streams: Streams
    stream: Stream
    capacities: Capacities


@dataclass(frozen=True, eq=False)
class StaticBatches:
    """The batches of a loader for recorded steps: its seeds and keys in order, and the buffers they fill.

    The position of the loader moves when a batch is `received`, as in a loop over the loader.
    """

    room: StaticRoom
    order: SeedOrder
    progress: LoopProgress

    def epoch(self, epoch: int) -> StaticLoop:
        """Begin the loop over an epoch; after `load_state_dict`, over the remaining batches."""
        loop, start = self.progress.begin(epoch)
        return StaticLoop(self, loop, start)

    def state(self) -> dict[str, object]:
        """Return the capacities as plain values for a checkpoint, with the ranks that they are for."""
        return {"world_size": self.order.world_size, **self.room.capacities.state()}


@dataclass(frozen=True, eq=False)
class StaticLoop:
    """The remaining batches of one epoch."""

    batches: StaticBatches
    number: int
    start: Position

    @property
    def steps(self) -> range:
        """The steps of the batches."""
        return range(self.start.step, self.batches.order.num_steps)

    def inputs(self) -> Iterator[StepInput]:
        """Yield seeds, key and weight of each batch of this rank; they may be read ahead of the steps."""
        order, sampler = self.batches.order, self.batches.room.sampler
        for step in self.steps:
            request = request_of(order, self.start.epoch, step)
            planted = sampler.planted(request.seeds())
            check_seeds(sampler.neighbors.graph, planted.seeds.nodes)  # kernels do not check them
            check_times(planted.seeds, sampler.neighbors.rule)
            pairs = max((rows.pairs_per_link for rows in planted.links.values()), default=1)
            weight = order.world_size / (order.num_global_seeds(step) * pairs)
            yield StepInput(
                planted.seeds, request.key, weight, links=planted.links, excluded=planted.excluded
            )

    def received(self, step: int) -> None:
        """Move the loader's position behind a batch."""
        self.batches.progress.received(self.number, Position(self.start.epoch, step))


def saved_capacities(
    saved: State, world_size: int, edge_types: Sequence[tuple[str, str, str]]
) -> Capacities | None:
    """Return the capacities of a checkpoint; None if it has none for this number of ranks."""
    if saved.get("world_size") != world_size:
        return None
    levels = {name: of for name, of in saved.items() if isinstance(of, Sequence)}
    named: Mapping[str, Sequence[Mapping[str, int]]] = levels
    return Capacities.from_state(named, edge_types)
