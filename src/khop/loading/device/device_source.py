"""Batches sampled on a GPU, issued by one thread on one stream, also as inputs of recorded steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from time import monotonic

import torch
from torch import Tensor

from khop.batch import LinkRows, Sample, Span, num_bytes
from khop.draw import DrawKey
from khop.errors import Outcome, Unsupported
from khop.kernels.gather import Copies
from khop.loading.columns import ColumnChoice, DeferredColumns
from khop.loading.device.batch_check import BatchCheck
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.loading.device.device_caching import (
    CopiesByColumn,
    SlotCounts,
    counts_in_cache,
    counts_of_host,
    rows_in_cache,
)
from khop.loading.device.placed_stores import PlacedStores
from khop.loading.device.self_proof import checks_of, why_not_proven
from khop.loading.device.streams import Event, Stream, Streams
from khop.loading.device.transfer import Arrival, storages
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.ordered_map import InFlight, ordered_map
from khop.loading.source import (
    BatchRequest,
    Drawn,
    LoopProgress,
    Position,
    State,
    StepRequests,
    request_of,
)
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.capacities import Capacities
from khop.sampling.on_device.device_batch import DeviceBatch, drawn_with_larger_buffers, exact_sample
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.sampler import KernelSampler, PlantedSeeds, check_seeds, check_times
from khop.sampling.seeds import SeedOrder, Seeds
from khop.schema import EdgeType


@dataclass(frozen=True, eq=False)
class StaticRoom:
    """Buffers of a few batches with static shapes, and the stream that fills them."""

    source: DeviceSource
    deferred: DeferredColumns
    sampler: KernelSampler  # over the graph on the CPU
    slots: list[BatchSlot]
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
    check: BatchCheck | None = None  # of the first batch of each epoch; None: no comparison

    def measured(self, steps: Iterable[Position]) -> Capacities:
        """Return the capacities that this rank's batches of some steps need, and those of all batches so far.

        They are measured as in the beginning, on the CPU.
        """
        requests = [request_of(self.order, at.epoch, at.step) for at in steps]
        found = self.room.source.measured([(request.seeds(), request.key) for request in requests])
        return found.joined(self.room.capacities)

    def resized(self, capacities: Capacities) -> StaticBatches:
        """Return the same batches in buffers of other capacities; the buffers of this object are freed.

        Their work must have ended.
        """
        room = self.room
        if self.check is not None:
            self.check.join()
        room.slots.clear()
        return replace(self, room=room.source.static(room.deferred, capacities))

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

    def inputs(self) -> Generator[StepInput]:
        """Yield seeds, key and weight of each batch of this rank; they may be read ahead of the steps.

        A thread prepares the batches of links, because it draws their negatives.
        """
        room = self.batches.room
        if not room.capacities.links:
            return (self._input(step) for step in self.steps)
        ahead = InFlight(threads=1, prefetch=len(room.slots) + 1)
        return ordered_map(self._input, self.steps, ahead, lambda given: 0)  # a few ids per seed

    def _input(self, step: int) -> StepInput:
        order, sampler = self.batches.order, self.batches.room.sampler
        request = request_of(order, self.start.epoch, step)
        planted = sampler.planted(request.seeds())
        check_seeds(sampler.neighbors.graph, planted.seeds.nodes)  # kernels do not check them
        check_times(planted.seeds, sampler.neighbors.rule)
        pairs = _pairs_per_link(planted.links)
        weight = order.world_size / (order.num_global_seeds(step) * pairs)
        return StepInput(planted.seeds, request.key, weight, links=planted.links, excluded=planted.excluded)

    def compared(self) -> AbstractContextManager[None]:
        """Compare the first of the batches in the block; see BatchCheck."""
        check = self.batches.check
        requests = StepRequests(self.batches.order, self.start.epoch, self.steps)
        return nullcontext() if check is None else check.of_loop(requests)

    def made(self, slot: BatchSlot | None, seeds: Seeds) -> None:
        """Compare the batch in a slot before the slot is filled again. None: the batch exceeded the slot."""
        check, room = self.batches.check, self.batches.room
        if check is not None:
            with room.streams.issuing(room.stream):
                check.received(None if slot is None else partial(slot.copied, seeds))

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


WarmUp = Callable[[], Sequence[tuple[Seeds, DrawKey]]]
STATIC_SLOTS = 2  # batches with static shapes: one is made while the step computes with the other
_AHEAD = 1  # batches whose kernels are started before the host waits for the one before them


@dataclass(frozen=True)
class _Slot:
    """Buffers of a batch on the device, and of its counts on the host."""

    batch: DeviceBatch
    counts: Tensor  # pinned, as batch.cells.values
    cached: SlotCounts


@dataclass(frozen=True)
class _Issued:
    """A batch with started kernels; without a slot, its seeds exceed the buffers."""

    request: BatchRequest
    seeds: Seeds
    planted: PlantedSeeds  # the seed nodes, and of links their rows
    started: float
    slot: _Slot | None = None
    counted: Event | None = None  # the counts are on the host


class DeviceSource:
    """A batch source over edges that kernels of a device read; see BatchSource.

    Its batches are those of `host`, bit for bit. The kernels of the next batch are started before the host
    waits for the counts of the current one: one wait per batch. A finished batch is a copy, so its slot is
    reused in the order of the stream. A batch that exceeds the slots gets larger buffers of its own.
    """

    def __init__(self, host: LocalSource, stores: PlacedStores, streams: Streams, warm_up: WarmUp) -> None:
        self._host = host
        self._sampler = host.sampler.for_kernels()
        self._stores = stores
        self._streams = streams
        self._stream = streams.side()
        self._warm_up = warm_up
        self._plan: BatchPlan | None = None
        self._idle: deque[_Slot] = deque()
        self._lock = Lock()
        self.overflows = 0  # batches that exceeded the slots

    def over(self, host: LocalSource) -> DeviceSource:
        """Return this source with other feature stores on the host. Use only one of the two."""
        other = copy(self)
        other._host = host
        return other

    def prepare(self) -> None:
        """Measure on a few batches of the CPU how large slots have to be, and allocate the tables."""
        if self._plan is None:
            self._plan_for(self.measured())

    def measured(self, more: Sequence[tuple[Seeds, DrawKey]] = ()) -> Capacities:
        """Return the capacities for the first batches, and for some more of them, drawn by the CPU."""
        return measured_capacities(self._host.sampler, [*self._warm_up(), *more])

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch that is waited for."""
        return self._finish(self._issue(request))

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches ahead on one thread and yield them in order; see BatchSource."""
        issued: deque[Outcome[_Issued]] = deque()
        ahead = min(_AHEAD, in_flight.prefetch - 1)

        def made(number: int) -> Drawn:
            with self._streams.selected():
                for later in range(number + len(issued), min(number + 1 + ahead, len(requests))):
                    issued.append(Outcome.of(partial(self._issue, requests[later])))
                return self._finish(issued.popleft().given())

        limits = replace(in_flight, threads=1, prefetch=in_flight.prefetch - ahead)
        return ordered_map(made, range(len(requests)), limits, num_bytes)

    def static(self, deferred: DeferredColumns, capacities: Capacities | None = None) -> StaticRoom:
        """Return buffers of a few batches with static shapes, by default of the measured capacities.

        Batches have `deferred` columns by id.

        Unsupported if the CPU reads columns of the batches. Negatives of links are drawn by the CPU.
        """
        _check_static(self._host)
        self.prepare()
        with self._lock:
            if capacities is not None:
                self._plan_for(capacities)
            plan, columns = self._plan, self._host.device_columns
            assert plan is not None
            chosen = ColumnChoice() if columns is None else columns.choice
            schema = self._host.sampler.graph.schema
            features = self._stores.features(schema)
            copies: dict[str, dict[str, Copies]] = {}
            for (node_type, name), of_column in ({} if columns is None else columns.copies).items():
                copies.setdefault(node_type, {})[name] = of_column
            record = self._streams.recorder(self._stream)
            links = self._sampler.planted(self._warm_up()[0][0]).links
            _pairs_per_link(links)
            with self._streams.issuing(self._stream):
                slots = [
                    BatchSlot(plan, features, chosen, record, copies, links, deferred)
                    for _ in range(STATIC_SLOTS)
                ]
        return StaticRoom(self, deferred, self._sampler, slots, self._streams, self._stream, plan.capacities)

    def _plan_for(self, capacities: Capacities) -> None:
        """Allocate the tables of batches up to these capacities, instead of those before."""
        assert self._stores.edges is not None
        self._idle.clear()
        with self._streams.issuing(self._stream):
            if self._plan is None:
                edges, device = self._stores.edges, self._stores.device
                self._plan = BatchPlan(self._sampler.over(edges), capacities, device)
            else:
                self._plan = self._plan.resized(capacities)
        self._check_kernels(capacities)

    def _check_kernels(self, capacities: Capacities) -> None:
        """Raise ValueError unless the kernels of the sampler give the CPU's bits on this card."""
        device, plan = self._stores.device, self._plan
        assert plan is not None
        if device.type == "cpu":  # of tests
            return
        names = checks_of(self._sampler, plan.arrays, excludes=bool(capacities.excluded))
        reason = why_not_proven(device, names)
        if reason is not None:
            raise ValueError(f'{reason}; leave the topology to the CPU, topology="host"')

    def _issue(self, request: BatchRequest) -> _Issued:
        """Start the kernels of a batch. The host does not wait."""
        started, seeds = monotonic(), request.seeds()
        planted = self._sampler.planted(seeds)
        check_seeds(self._host.sampler.graph, planted.seeds.nodes)
        check_times(planted.seeds, self._sampler.neighbors.rule)
        with self._lock, self._streams.issuing(self._stream):
            slot = self._idle.popleft() if self._idle else self._new_slot()
            if not slot.batch.inputs.fits(planted.seeds, planted.excluded):
                self._idle.append(slot)
                return _Issued(request, seeds, planted, started)
            slot.batch.write(planted.seeds, request.key, planted.excluded)
            slot.batch.launch()
            slot.counts.copy_(slot.batch.cells.values, non_blocking=True)
            of_types = slot.batch.nodes.items()
            nodes, live = {t: of.nodes for t, of in of_types}, {t: of.counts[-1].value for t, of in of_types}
            slot.cached.write(nodes, live)
            return _Issued(request, seeds, planted, started, slot, self._streams.record(self._stream))

    def _finish(self, issued: _Issued) -> Drawn:
        """Wait for the counts of a batch, and start its copies and gathers."""
        if issued.counted is not None:
            issued.counted.synchronize()
        with self._lock, self._streams.issuing(self._stream):
            sample, traffic = self._sample(issued)
            links = {t: rows.map(self._moved) for t, rows in issued.planted.links.items()}
            sample = issued.seeds.added_to(replace(sample, links=links), self._moved)
            return self._drawn(sample, issued.started, traffic)

    def _sample(self, issued: _Issued) -> tuple[Sample, Mapping[str, float]]:
        """Return the sample of a batch that has been counted, and its counts in cached columns."""
        planted = issued.planted
        if issued.slot is not None:
            counts, batch = counts_of(issued.slot.counts), issued.slot.batch
            self._idle.append(issued.slot)
            if counts.overflowed != batch.stamp:
                sample = exact_sample(batch, counts, planted.seeds).map(Tensor.clone)
                return sample, issued.slot.cached.counts()
        self.overflows += 1
        assert self._plan is not None, "it has made the slots"
        sample = drawn_with_larger_buffers(self._plan, planted.seeds, issued.request.key, planted.excluded)
        return sample, counts_in_cache(sample.nodes, self._copies)

    def _new_slot(self) -> _Slot:
        assert self._plan is not None, "prepare comes first"
        batch = DeviceBatch(self._plan)
        is_cpu = self._stores.device.type == "cpu"
        counts = torch.empty_like(batch.cells.values, device="cpu", pin_memory=not is_cpu)
        return _Slot(batch, counts, SlotCounts(self._copies, self._stores.device))

    @property
    def _copies(self) -> CopiesByColumn:
        columns = self._host.device_columns
        return {} if columns is None else columns.copies

    def _moved(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of the host to the device in the current stream."""
        return self._streams.copied(self._streams.pinned(tensor))

    def _drawn(self, sample: Sample, started: float, traffic: Mapping[str, float]) -> Drawn:
        """Return a batch with its columns. The stream of this source is the current one."""
        sampling = Span.since(started, "sampling")
        seed_nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        drawn = Drawn(sample, seed_nodes, {}, {}, traffic=traffic)
        drawn = _with_host_columns(self._host, drawn, self._stores.device)
        if self._host.device_columns is not None:
            drawn = self._host.device_columns.add(drawn)
        made = self._streams.record(self._stream)
        spans = (sampling, Span.since(sampling.ended, "gathering"))
        return replace(drawn, spans=spans, arrival=Arrival(self._streams, made, storages(drawn)))


def _with_host_columns(host: LocalSource, drawn: Drawn, device: torch.device) -> Drawn:
    """Add the columns that the CPU gathers. It waits for the sample, and rows without a cache are copied."""
    features, choice = host.features, host.columns
    if features is None or choice.is_empty:
        return drawn
    on_host = drawn.sample.map(lambda tensor: tensor.to("cpu"))
    cached = {} if host.on_device is None else rows_in_cache(host.on_device, choice, on_host)
    found, columns, seed_columns = gather_columns(features, choice, on_host, cached)
    counts = counts_of_host(on_host.nodes, cached, {}) if host.on_device is not None else {}
    gathered = Drawn(found, {}, columns, seed_columns, cached_rows=cached).map(lambda of: of.to(device))
    return replace(
        gathered,
        sample=gathered.sample if choice.of_edges else drawn.sample,
        seed_nodes=drawn.seed_nodes,
        traffic={**drawn.traffic, **{name: drawn.traffic.get(name, 0) + n for name, n in counts.items()}},
    )


def _pairs_per_link(links: Mapping[EdgeType, LinkRows]) -> int:
    """Return the number of pairs of each link; Unsupported if it depends on the edge type."""
    counts = {rows.pairs_per_link for rows in links.values()} or {1}
    if len(counts) > 1:
        raise Unsupported(
            f"edge types with different numbers of negatives, {sorted(count - 1 for count in counts)}: steps "
            "with these are not recorded; leave launches out"
        )
    return counts.pop()


def _check_static(host: LocalSource) -> None:
    """Raise Unsupported if the CPU has a part in the batches, so that their shapes change."""
    choice = host.columns
    on_host = sorted({name for of in (choice.of_nodes, choice.of_seeds) for t in of for name in of[t]})
    if choice.of_edges:
        raise Unsupported(f"columns of edges {list(choice.of_edges)} have no static shapes")
    if on_host:
        raise Unsupported(
            f"the CPU reads the columns {on_host}; place them where the GPU reads them: device or pinned"
        )
