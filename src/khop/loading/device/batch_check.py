"""Comparison of batches sampled on a GPU with the CPU's, on a thread and a low-priority stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from khop.batch import Batch, Columns
from khop.errors import Outcome
from khop.loading.columns import ColumnChoice, Names
from khop.loading.device.streams import Event, Streams
from khop.loading.local_source import LocalSource
from khop.loading.source import BatchRequest, Position, finished
from khop.sampling.seeds import SeedOrder
from khop.schema import NodeType


class BatchCheck:
    """Comparison of the first batch of each loop with that of the CPU, while the loop goes on.

    `reference` makes the same batches on the CPU, except the columns that GPUs exchange: `exchanged` are not
    compared.
    """

    def __init__(
        self, reference: LocalSource, exchanged: ColumnChoice, order: SeedOrder, streams: Streams
    ) -> None:
        self._reference, self._exchanged = reference, exchanged
        self._order, self._streams = order, streams
        self._stream = streams.background()
        self._request: BatchRequest | None = None  # of the first batch of a loop, until it is received
        self._thread: threading.Thread | None = None
        self._outcome: Outcome[None] | None = None

    @contextmanager
    def of_loop(self, requests: Sequence[BatchRequest]) -> Iterator[None]:
        """Compare the first batch of the loop in the block; ValueError at its end if batches differ."""
        self.join()
        self._raise_difference()
        self._request = requests[0] if requests else None
        try:
            yield
        finally:
            self.join()
        self._raise_difference()

    def received(self, copied: Callable[[], Batch] | None) -> None:
        """Start the comparison if the batch is the first one; ValueError once it has found a difference.

        `copied` issues a copy of the batch, which the loop may change, to the current stream. None: the batch
        exceeded its buffers.
        """
        self._raise_difference()
        request, self._request = self._request, None
        if request is None or copied is None:
            return
        copy, made = copied(), self._streams.record(self._streams.current())
        self._thread = threading.Thread(target=self._run, args=(copy, made, request), name="khop-check")
        self._thread.start()

    def _raise_difference(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome.given()

    def join(self) -> None:
        """Wait for the comparison that is running, if any."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self, copy: Batch, made: Event, request: BatchRequest) -> None:
        self._outcome = Outcome.of(lambda: self._compare(copy, made, request))

    def _compare(self, copy: Batch, made: Event, request: BatchRequest) -> None:
        position = Position(request.epoch, request.step)
        drawn = self._reference.with_threads(1).draw(request)
        wanted = finished(replace(drawn, arrival=None), self._order, position, torch.device("cpu"))
        exchanged = self._exchanged
        copy = replace(
            copy,
            columns=_without(copy.columns, exchanged.of_nodes),
            seed_columns=_without(copy.seed_columns, exchanged.of_seeds),
        )
        with self._streams.issuing(self._stream):
            self._streams.wait(self._stream, made)
            found = copy.map(lambda tensor: tensor.to("cpu"))
        different = _difference(found, wanted)
        if different is not None:
            raise ValueError(
                f"the batch of epoch {request.epoch}, step {request.step}, key {request.key.value:#x}: "
                f"{different} made by the GPU differ from the CPU's; run khop doctor --gpu, and leave the "
                "graph to the CPU (--topology host --features host), or train without this comparison "
                "(--check none)"
            )


def _without(columns: Columns, names: Mapping[NodeType, Names]) -> Columns:
    return {
        t: {name: rows for name, rows in of_type.items() if name not in names.get(t, ())}
        for t, of_type in columns.items()
    }


def _difference(found: Batch, wanted: Batch) -> str | None:
    """Return the first part in which two batches differ; None if they are equal."""
    parts, others = list(_tensors(found)), list(_tensors(wanted))
    if [what for what, _ in parts] != [what for what, _ in others]:
        return "types and columns"
    pairs = zip(parts, others, strict=True)
    return next((what for (what, ours), (_, theirs) in pairs if not _is_same(ours, theirs)), None)


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch, each with its name."""
    sample = batch.sample
    of_types = ("nodes", sample.nodes), ("seeds", batch.seed_nodes), ("rows of seeds", sample.seed_index)
    for what, ids in of_types:
        yield from ((f"{what} of {t!r}", ids[t]) for t in sorted(ids))
    for number, block in enumerate(sample.blocks):
        for edge_type, edges in sorted(block.adjacencies.items()):
            columns = (edges.columns[name] for name in sorted(edges.columns))
            parts = edges.indptr, edges.indices, edges.edge_ids, edges.weight, edges.elapsed, *columns
            what = f"edges of {edge_type} in block {number}"
            yield from ((what, part) for part in parts if part is not None)
    for of_nodes in (batch.columns, batch.seed_columns):
        for t in sorted(of_nodes):
            rows = of_nodes[t]
            yield from ((f"rows of column {name!r} of {t!r}", rows[name]) for name in sorted(rows))


def _is_same(ours: Tensor, theirs: Tensor) -> bool:
    """Return True if dtype, shape and numbers are equal; NaN equals NaN."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if not ours.is_floating_point():
        return torch.equal(ours, theirs)
    return bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())
