"""Protocol between a loader and the making of batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from khop.batch import Change, Columns, Sample, Span, map_all
from khop.draw import DrawKey
from khop.features.store import Rows
from khop.features.table import FeatureTable
from khop.kernels.gather import column_reference
from khop.loading.ordered_map import InFlight
from khop.loading.transfer import Arrival
from khop.sampling.sampler import Seeds
from khop.schema import NodeType


@dataclass(frozen=True)
class BatchRequest:
    """The batch of some seeds under a key. Epoch and step name it in messages and errors."""

    # Computes this rank's seeds. A source calls it once, on the thread that makes the batch: it takes time,
    # and if the seed list is partitioned across ranks, it is collective.
    seeds: Callable[[], Seeds]
    key: DrawKey
    epoch: int
    step: int

    @classmethod
    def of(cls, seeds: Seeds, key: DrawKey, epoch: int = 0, step: int = 0) -> BatchRequest:
        """Return the request for seeds that are known."""
        return cls(lambda: seeds, key, epoch, step)


@dataclass(frozen=True)
class DeviceRows:
    """Rows of one node type that are cached on the device, so they are not copied with the batch."""

    node_type: NodeType
    table: FeatureTable  # the cache on the device
    wanted: Rows  # slots in the cache, int64 (n), with the columns to read
    rows: Tensor  # int64 (n), the rows of the batch to fill from the cache
    others: Tensor  # int64 (m), the rows of the batch in its columns until then

    def map(self, change: Change) -> DeviceRows:
        """Return the same rows with `change` applied to every tensor of the batch."""
        wanted = replace(self.wanted, ids=change(self.wanted.ids))
        return replace(self, wanted=wanted, rows=change(self.rows), others=change(self.others))

    def fill(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all rows of the columns, on the device; `columns` has the rows that are not cached."""
        filled = {}
        for name, others in columns.items():
            column = self.table.column(self.node_type, name, self.wanted)
            # The slots are valid: checking them would wait for the device.
            filled[name] = self._joined(column_reference(column, self.wanted.ids), others)
        return filled

    def _joined(self, cached: Tensor, others: Tensor) -> Tensor:
        count = self.rows.numel() + self.others.numel()
        rows = torch.empty((count, *others.shape[1:]), dtype=others.dtype, device=others.device)
        return rows.index_copy_(0, self.others, others).index_copy_(0, self.rows, cached)


@dataclass(frozen=True)
class Drawn:
    """A sample with its columns, of which the loader makes a batch. It may be on the way to the device."""

    sample: Sample
    seed_nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids, in the epoch's global order
    columns: Columns  # per node type: column name -> (rows, ...), without the rows in `device_rows`
    seed_columns: Columns  # per seed node type: column name -> (seeds, ...)
    spans: tuple[Span, ...] = ()  # the time spent making it
    traffic: Mapping[str, float] = field(default_factory=dict)  # data exchanged by this rank for it
    device_rows: Mapping[NodeType, DeviceRows] = field(default_factory=dict)  # filled in after the copy
    arrival: Arrival | None = None  # work of another stream that makes the tensors; None: they are complete

    def map(self, change: Change) -> Drawn:
        """Return the same value with `change` applied once to every tensor."""
        return replace(
            self,
            sample=self.sample.map(change),
            seed_nodes=map_all(self.seed_nodes, change),
            columns={t: map_all(of_type, change) for t, of_type in self.columns.items()},
            seed_columns={t: map_all(of_type, change) for t, of_type in self.seed_columns.items()},
            device_rows={t: rows.map(change) for t, rows in self.device_rows.items()},
        )


class BatchSource(Protocol):
    """A source of batches: a pure function from requests, and the scheduling of several of them.

    The loader keeps the order of the seeds, the position in the run, and the arrival on the device.
    """

    def prepare(self) -> None:
        """Build the arrays that draws need, before the first batch. Collective where the graph is."""
        ...

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch that is waited for. Collective where the graph is."""
        ...

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches ahead of the consumer and yield them in the order of the requests.

        An error is raised in place of its batch and ends the stream. `close()` ends it early, on all ranks if
        it is collective.
        """
        ...
