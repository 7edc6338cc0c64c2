"""Protocol of batch sources: requests for the steps of an epoch, and the drawn batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, overload

import torch
from torch import Tensor

from khop.arguments import instance_of, mapping_of, whole
from khop.batch import Batch, Change, Columns, Sample, Span, map_all
from khop.draw import DrawKey, Purpose
from khop.graph.features.store import Rows
from khop.graph.features.table import FeatureTable
from khop.graph.node_ids import LABEL
from khop.kernels.gather import column_reference
from khop.loading.device.transfer import Arrival, place
from khop.loading.ordered_map import InFlight
from khop.sampling.seeds import SeedOrder, Seeds, check_fingerprint
from khop.schema import NodeType

State = Mapping[str, object]

# Names of counts in the traffic of a batch.
SECONDS = "seconds"  # spent waiting; the only count that differs between equal runs
SERVER = "server"  # number of the server that made the batch: recorded for each step, and never summed
SERVER_RETRIES = "server_retries"  # attempts that failed before
SERVER_BYTES = "server_bytes"  # of the answer


@dataclass(frozen=True)
class BatchRequest:
    """The batch of some seeds under a key. Epoch and step name it in messages, `words` or both in errors."""

    # Computes this rank's seeds. A source calls it once, on the thread that makes the batch: it takes time,
    # and if the seed list is partitioned across ranks, it is collective.
    seeds: Callable[[], Seeds]
    key: DrawKey
    epoch: int
    step: int
    words: str = ""
    order: SeedOrder | None = None  # of the loader; None: the batch is not of a loader
    micro_batch: int = 0

    @classmethod
    def of(cls, seeds: Seeds, key: DrawKey, epoch: int = 0, step: int = 0, words: str = "") -> BatchRequest:
        """Return the request for seeds that are known."""
        return cls(lambda: seeds, key, epoch, step, words)


def request_of(order: SeedOrder, epoch: int, step: int, micro_batch: int = 0) -> BatchRequest:
    """Return the request for this rank's share of a step, or for one of its micro-batches.

    All micro-batches of a step have its key, so the layered expansion draws as in one batch.
    """
    key = DrawKey.of(order.run_seed, Purpose.HOP, epoch, step)
    seeds = partial(order.share, epoch, step, micro_batch)
    return BatchRequest(seeds, key, epoch, step, order=order, micro_batch=micro_batch)


@dataclass(frozen=True)
class StepRequests(Sequence[BatchRequest]):
    """Lazy sequence of the requests for some batches of an epoch."""

    order: SeedOrder
    epoch: int
    batches: (
        range  # numbers of batches: of the step times `order.micro_batches`, plus that of the micro-batch
    )

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    @overload
    def __getitem__(self, index: int) -> BatchRequest: ...
    @overload
    def __getitem__(self, index: slice) -> StepRequests: ...
    def __getitem__(self, index: int | slice) -> BatchRequest | StepRequests:
        """Return the request for one batch, or the requests for some of the batches."""
        if isinstance(index, slice):
            return replace(self, batches=self.batches[index])
        return request_of(self.order, self.epoch, *divmod(self.batches[index], self.order.micro_batches))


@dataclass(frozen=True)
class CachedRows:
    """Rows of one node type that are cached on the device, so they are not copied with the batch."""

    node_type: NodeType
    table: FeatureTable  # the cache on the device
    wanted: Rows  # slots in the cache, int64 (n), with the columns to read
    rows: Tensor  # int64 (n), the rows of the batch to fill from the cache
    others: Tensor  # int64 (m), the rows of the batch in its columns until then

    def map(self, change: Change) -> CachedRows:
        """Return the same rows with `change` applied to every tensor of the batch."""
        wanted = replace(self.wanted, ids=change(self.wanted.ids))
        return replace(self, wanted=wanted, rows=change(self.rows), others=change(self.others))

    def fill(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all rows of all columns, on the device; `columns` lacks the cached rows of cached ones."""
        filled = dict(columns)
        for name in self.wanted.columns:
            column = self.table.column(self.node_type, name, self.wanted)
            # The slots are valid: checking them would wait for the device.
            filled[name] = self._joined(column_reference(column, self.wanted.ids), columns[name])
        return filled

    def _joined(self, cached: Tensor, others: Tensor) -> Tensor:
        count = self.rows.numel() + self.others.numel()
        rows = torch.empty((count, *others.shape[1:]), dtype=others.dtype, device=others.device)
        return rows.index_copy_(0, self.others, others).index_copy_(0, self.rows, cached)


@dataclass(frozen=True)
class Drawn:
    """A sampled subgraph with its columns, before it becomes a batch; tensors may be in transfer."""

    sample: Sample
    seed_nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids, in the epoch's global order
    columns: Columns  # per node type: column name -> (rows, ...), without the rows in `cached_rows`
    seed_columns: Columns  # per seed node type: column name -> (seeds, ...)
    spans: tuple[Span, ...] = ()  # the time spent making it
    traffic: Mapping[str, float] = field(default_factory=dict)  # data exchanged by this rank for it
    cached_rows: Mapping[NodeType, CachedRows] = field(default_factory=dict)  # filled in after the copy
    arrival: Arrival | None = None  # work of another stream that makes the tensors; None: they are complete

    def map(self, change: Change) -> Drawn:
        """Return the same value with `change` applied once to every tensor."""
        return replace(
            self,
            sample=self.sample.map(change),
            seed_nodes=map_all(self.seed_nodes, change),
            columns={t: map_all(of_type, change) for t, of_type in self.columns.items()},
            seed_columns={t: map_all(of_type, change) for t, of_type in self.seed_columns.items()},
            cached_rows={t: rows.map(change) for t, rows in self.cached_rows.items()},
        )

    def on_its_way(self, arrival: Arrival) -> Drawn:
        """Return the value with its arrival; the gathering, which began after the first span, ends now."""
        sampling = self.spans[0]
        spans = (sampling, Span.since(sampling.ended, "gathering"))
        return replace(self, arrival=arrival, spans=spans)


@dataclass(frozen=True)
class Position:
    """Epoch and step of the next batch that the consumer has not received.

    If a step has several micro-batches, the position advances after the last one.
    """

    epoch: int = 0
    step: int = 0
    micro_batch: int = 0  # within a step

    def after(self, num_steps: int) -> Position:
        """Return the next position; the last step of an epoch is followed by step 0 of the next epoch."""
        if self.step + 1 < num_steps:
            return Position(self.epoch, self.step + 1)
        return Position(self.epoch + 1)

    def state(self, order: SeedOrder) -> dict[str, object]:
        """Return plain values for a file, with the fingerprint that must be equal on load."""
        return {"epoch": self.epoch, "step": self.step, "fingerprint": dict(order.fingerprint)}

    @classmethod
    def of_state(cls, state: State, order: SeedOrder) -> Position:
        """Return the position that `state` describes; ValueError if it does not fit this order."""
        given = mapping_of("loader state", state, "names to values, as state_dict() gives it")
        epoch, step, fingerprint = (
            whole(given.get("epoch")),
            whole(given.get("step")),
            given.get("fingerprint"),
        )
        if epoch is None or step is None or not isinstance(fingerprint, Mapping):
            raise ValueError(f"loader state {dict(state)}: needs numbers epoch and step, and a fingerprint")
        check_fingerprint(fingerprint, order.fingerprint)
        if epoch < 0 or not 0 <= step < order.num_steps:
            raise ValueError(
                f"loader state at epoch {epoch}, step {step}: an epoch has steps 0 to {order.num_steps - 1}"
            )
        return cls(epoch, step)


def finished(drawn: Drawn, order: SeedOrder, position: Position, device: torch.device) -> Batch:
    """Wait in the current stream for a drawn batch, and insert the rows that are cached on the device.

    A batch that is not on its way there is copied.
    """
    if drawn.arrival is not None:
        drawn.arrival.wait()
    moved = place(drawn, device) if drawn.arrival is None and device.type != "cpu" else drawn
    filled = {t: rows.fill(moved.columns[t]) for t, rows in moved.cached_rows.items()}
    labels = {t: {**moved.seed_columns.get(t, {}), LABEL: of} for t, of in moved.sample.seed_labels.items()}
    return Batch(
        moved.sample,
        moved.seed_nodes,
        {**moved.columns, **filled},
        {**moved.seed_columns, **labels},
        position.epoch,
        position.step,
        num_global_seeds=order.num_global_seeds(position.step),
        world_size=order.world_size,
        micro_batch=position.micro_batch,
        micro_batches=order.micro_batches,
        spans=moved.spans,
        traffic=moved.traffic,
    )


@dataclass(frozen=True)
class BatchTransform:
    """A function of the user, from a batch to the batch that a loader gives."""

    function: Callable[[Batch], Batch]

    def __call__(self, batch: Batch) -> Batch:
        """Call the function; ValueError if it returns no batch."""
        changed = self.function(batch)
        instance_of("transform", changed, Batch, "it must return a khop.Batch, such as dataclasses.replace()")
        return changed

    def of_drawn(self, drawn: Drawn, request: BatchRequest) -> Drawn:
        """Transform a complete batch of a loader in the memory of the host, on the thread that makes it."""
        if request.order is None:
            return drawn
        position = Position(request.epoch, request.step, request.micro_batch)
        batch = self(finished(drawn, request.order, position, torch.device("cpu")))
        return replace(
            drawn,
            sample=replace(batch.sample, seed_labels={}),  # they are seed columns now
            seed_nodes=batch.seed_nodes,
            columns=batch.columns,
            seed_columns=batch.seed_columns,
        )


class BatchSource(Protocol):
    """Makes batches from requests, as a pure function, and schedules several requests.

    The loader keeps the order of the seeds, the position in the run, and the arrival on the device.
    """

    def prepare(self) -> None:
        """Build the arrays that draws need, before the first batch. Collective if the graph is."""
        ...

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch that is waited for. Collective if the graph is."""
        ...

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches ahead of the consumer and yield them in the order of the requests.

        An error is raised instead of its batch and ends the stream. `close()` ends it early, on all ranks if
        it is collective.
        """
        ...


class LoopProgress:
    """The position of a loader, and the epochs of its loops."""

    def __init__(self, order: SeedOrder) -> None:
        self.next = Position()  # of the loop that started last, or as loaded
        self._order = order
        self._loaded: Position | None = None  # until a loop starts there
        self._following = 0  # the epoch of the next loop without a given epoch
        self._loops = 0  # started, or cut off by a loaded state; only the last one moves the position

    def start(self, epoch: int | None) -> Position:
        """Return the first batch of a loop that would start now; ValueError if it may not."""
        loaded = self._loaded
        if loaded is None:
            return Position(self._following if epoch is None else epoch)
        if epoch not in (None, loaded.epoch):
            raise ValueError(
                f"epoch {epoch}: the loaded state is at epoch {loaded.epoch}, step {loaded.step}; "
                f"continue with epoch({loaded.epoch})"
            )
        return loaded

    def begin(self, epoch: int | None) -> tuple[int, Position]:
        """Start a loop over an epoch, by default the next one; return its number and its first batch."""
        self.next = self.start(epoch)
        self._loaded = None
        self._following = self.next.epoch + 1
        self._loops += 1
        return self._loops, self.next

    def received(self, loop: int, position: Position) -> None:
        """Move behind a step with its last batch, unless another loop has started since."""
        if loop == self._loops and position.micro_batch + 1 == self._order.micro_batches:
            self.next = position.after(self._order.num_steps)

    def load(self, state: State) -> None:
        """Continue from a saved state; ValueError if it does not fit."""
        self.next = self._loaded = Position.of_state(state, self._order)
        self._loops += 1
