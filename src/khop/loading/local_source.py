"""Batches made by threads of this process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import torch

from khop.batch import Columns, Span, num_bytes
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStore
from khop.kernels.memory import pinned_results
from khop.loading.columns import ColumnChoice, gather_columns
from khop.loading.device_columns import DeviceColumns
from khop.loading.device_rows import rows_on_device
from khop.loading.ordered_map import InFlight, ordered_map
from khop.loading.source import BatchRequest, Drawn
from khop.loading.transfer import Transfer
from khop.sampling.sampler import Sampler


@dataclass(frozen=True)
class LocalSource:
    """A batch source over a sampler and a feature store of this process."""

    sampler: Sampler
    features: FeatureStore | None  # None if no column was requested
    columns: ColumnChoice  # gathered on the CPU
    device: torch.device  # of the finished batches
    on_device: RowCache = field(default_factory=RowCache.empty)  # node rows already on the device
    transfer: Transfer | None = None  # copies to the device ahead of the consumer; None: the loader copies
    device_columns: DeviceColumns | None = None  # gathered on the device after the copy

    def prepare(self) -> None:
        """Do nothing: the first draw that needs an array builds it, while other threads wait."""

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch with torch's number of threads."""
        return self.with_threads(torch.get_num_threads()).draw(request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches on a few threads, each batch on one of them; see BatchSource and `ordered_map`."""
        return ordered_map(self.draw, requests, in_flight, num_bytes)

    def with_threads(self, threads: int) -> LocalSource:
        """Return a source of the same batches that uses up to `threads` threads for each."""
        features = None if self.features is None else self.features.with_threads(threads)
        return replace(self, sampler=self.sampler.with_threads(threads), features=features)

    def draw(self, request: BatchRequest) -> Drawn:
        """Make one batch on the calling thread. Several threads may do so at once."""
        if self.transfer is None:
            return self._made(request)
        with pinned_results():
            return self._sent(self._made(request), self.transfer)

    def _made(self, request: BatchRequest) -> Drawn:
        started = monotonic()
        sample = self.sampler.sample(request.seeds(), request.key)
        sampling = Span.since(started, "sampling")
        columns: Columns = {}
        seed_columns: Columns = {}
        device_rows = rows_on_device(self.on_device, self.columns, sample)
        if self.features is not None:
            sample, columns, seed_columns = gather_columns(self.features, self.columns, sample, device_rows)
        return Drawn(
            sample,
            {node_type: sample.nodes[node_type][index] for node_type, index in sample.seed_index.items()},
            columns,
            seed_columns,
            spans=(sampling, Span.since(sampling.ended, "gathering")),
            device_rows=device_rows,
        )

    def _sent(self, drawn: Drawn, transfer: Transfer) -> Drawn:
        """Issue the copy to the device, and the gathers there."""
        columns = self.device_columns
        sent, arrival = transfer.send(drawn) if columns is None else transfer.send(drawn, columns.add)
        return replace(sent, arrival=arrival)
