"""Batches of a partitioned graph whose feature rows are exchanged between GPUs.

Lanes draw the batches on the CPU, or one thread draws them on the GPU. The consumer's thread issues the
exchanges, over the communicator of gradients: all ranks then issue exchanges and gradients in the order of
their training loop. In two threads or over two communicators, the order would differ between ranks, and NCCL
could wait forever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

import torch
from torch import Tensor

from khop.distributed.exchange.peers import Peers
from khop.distributed.exchange.row_wire import FixedWire
from khop.distributed.placement import LaneSource, place_of
from khop.distributed.rank_rows import (
    ANSWERING,
    ASKING,
    Asked,
    RankRows,
    RowSwap,
    SwapStatus,
    joined_columns,
    measured_format,
    message_counts,
    remote_counts,
    row_counts,
    row_parts,
    without,
)
from khop.draw import DrawKey
from khop.errors import Outcome
from khop.graph.features.store import Rows
from khop.kernels.gather import column_reference
from khop.kernels.memory import pinned_results
from khop.kernels.owners import IdSlots
from khop.loading.columns import ColumnChoice
from khop.loading.device.streams import Streams
from khop.loading.device.transfer import Transfer
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, BatchSource, Drawn
from khop.sampling.seeds import Seeds
from khop.schema import NodeType

WarmUp = Callable[[], Sequence[tuple[Seeds, DrawKey]]]
REPEATS = "repeated_exchanges"
_AHEAD = 1  # batches whose exchange is issued before the host waits for the one before them


@dataclass(frozen=True, eq=False)
class _Copied:
    """A batch on its way to the device, without the columns that are exchanged there."""

    request: BatchRequest
    sent: Drawn
    traffic: Mapping[str, float]  # of the draw


@dataclass(frozen=True, eq=False)
class _Issued:
    """A batch with an issued exchange; its tensors on the host are valid once it has arrived."""

    copied: _Copied
    sent: Drawn
    status: Tensor
    counts: Tensor  # see `remote_counts`
    traffic: Mapping[str, float]  # of the draw and the exchange


class DeviceLaneSource:
    """A batch source over feature rows in the device memory of all ranks; see BatchSource.

    Its batches are those of `host`, bit for bit. Lanes draw batches on the CPU and issue their copies, or
    `draws` draws them on the device. The consumer's thread issues the exchange of the next batch, and then
    waits for the status of the current one: one wait per batch. If a rank needs more rows than fit in a
    message, all ranks detect it and repeat the exchange over the host with messages of exact sizes.
    """

    def __init__(
        self,
        host: LaneSource,
        choice: ColumnChoice,
        rows: RankRows,
        streams: Streams,
        warm_up: WarmUp,
        draws: BatchSource | None = None,
    ) -> None:
        """`choice` has the columns in `rows`; the CPU gathers the other columns of `host`.

        `draws` makes the batches without columns on the device, if `choice` has all columns. It is prepared.
        """
        self._host = host
        self._choice = choice
        self._rows = rows
        self._streams = streams
        self._warm_up = warm_up
        self._draws = draws
        self._parts = tuple(row_parts(choice))
        local = host.local
        others = without(local.columns, choice)
        features = None if others.is_empty else local.features
        self._drawing = replace(local, columns=others, features=features, on_device=None, transfer=None)
        self._cache = cache = local.on_device
        self._slots: dict[NodeType, IdSlots] = {}  # of cached rows, for types with all columns in the cache
        if cache is not None:
            covered = (t for t, names in choice.of_nodes.items() if cache.covers(t, names))
            self._slots = {t: cache.slots[t].to(rows.device) for t in covered}
        self._format: FixedWire | None = None
        self.repeats = 0  # exchanges repeated because of too many rows

    def prepare(self) -> None:
        """Build the arrays that draws need, and measure the capacity that messages need. Collective."""
        self._host.prepare()
        peers = self._host.lanes.peers
        peers.open_channel(self._rows.device)
        self._format = measured_format(self._rows, self._parts, map(self._sampled, self._warm_up()), peers)

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch over the host, and wait for it. Collective: all ranks request the same step."""
        return self._host.make(request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Draw batches, and exchange their rows in this thread; see BatchSource and `Lanes.map`.

        `prefetch_bytes` has no effect if lanes draw.
        """
        ahead = min(_AHEAD, in_flight.prefetch - 1)
        transfer = Transfer(self._streams)
        issued: deque[Outcome[_Issued]] = deque()
        limits = replace(in_flight, prefetch=in_flight.prefetch - ahead)
        with closing(self._drawn(transfer, requests, limits)) as copied:

            def taken(number: int) -> Drawn:
                with self._streams.selected():
                    while len(issued) <= min(ahead, len(requests) - number - 1):
                        issued.append(Outcome.of(lambda: self._issue(transfer, next(copied))))
                        if issued[-1].error is not None:  # raised instead of yielding its batch
                            break
                    return self._finish(transfer, issued.popleft().given())

            yield from map(taken, range(len(requests)))
            next(copied, None)  # ends the lanes

    def _drawn(
        self, transfer: Transfer, requests: Sequence[BatchRequest], in_flight: InFlight
    ) -> Generator[_Copied]:
        """Draw batches without the exchanged columns, and yield them in order."""
        if self._draws is None:
            copy = partial(self._copied, self._drawing.with_threads(in_flight.threads), transfer)
            return self._host.lanes.map(copy, requests, in_flight.prefetch, place_of)
        return self._drawn_on_device(self._draws, requests, in_flight)

    def _drawn_on_device(
        self, draws: BatchSource, requests: Sequence[BatchRequest], in_flight: InFlight
    ) -> Generator[_Copied]:
        with closing(draws.stream(requests, in_flight)) as drawn:
            for request in requests:
                yield _Copied(request, next(drawn), {})

    def _copied(self, drawing: LocalSource, transfer: Transfer, request: BatchRequest) -> _Copied:
        """Draw a batch and issue its copy, in a lane. Does not wait for the device."""
        peers, before = self._host.lanes.peers, dict(self._host.lanes.peers.counts)
        with pinned_results():
            drawn = drawing.draw(request)
        sent, arrival = transfer.send(drawn)
        return _Copied(request, sent.on_its_way(arrival), _since(before, peers))

    def _issue(self, transfer: Transfer, copied: _Copied) -> _Issued:
        """Issue the exchange of a batch. Does not wait for the device."""
        peers, begun, on_host = self._host.lanes.peers, monotonic(), dict[str, Tensor]()

        def exchange(sent: Drawn) -> Drawn:
            if self._draws is not None:
                assert sent.arrival is not None
                sent.arrival.wait()  # made on another stream
            slots = self._cached_slots(sent)
            asked = [
                Asked(ids, self._widened(part.node_type))
                for part, ids in zip(self._parts, self._asked(sent, slots), strict=True)
            ]
            swapped = self._swap.issue(peers, _marks(peers, copied.request), asked)
            counts = remote_counts(self._rows, self._parts, sent, slots)
            on_host.update(status=_copied_to_host(swapped.status), counts=_copied_to_host(counts))
            return self._with_columns(sent, swapped.rows, slots)

        exchanged, arrival = transfer.after_copies(copied.sent, exchange)
        traffic = _sum(copied.traffic, message_counts(self._swap.format, peers, monotonic() - begun))
        return _Issued(
            copied, replace(exchanged, arrival=arrival), on_host["status"], on_host["counts"], traffic
        )

    def _finish(self, transfer: Transfer, issued: _Issued) -> Drawn:
        """Wait for the status of a batch; repeat its exchange if some rank had too many rows."""
        peers, copied, arrival = self._host.lanes.peers, issued.copied, issued.sent.arrival
        assert arrival is not None
        peers.wait_until(arrival.made.query, ANSWERING)
        status = SwapStatus.of(peers, _marks(peers, copied.request), issued.status)
        if status.overflowed:
            self.repeats += 1
            return self._repeated(transfer, issued)
        counts = row_counts(self._rows, self._parts, copied.sent, issued.counts.tolist(), status.requested)
        return replace(issued.sent, traffic=_sum(issued.traffic, counts, {REPEATS: 0}))

    def _repeated(self, transfer: Transfer, issued: _Issued) -> Drawn:
        """Gather the columns of a batch again, over the host with messages of exact sizes. Collective."""
        peers, names = self._host.lanes.peers, self._host.local.columns
        before = dict(peers.counts)

        def gather(sent: Drawn) -> Drawn:
            sample = sent.sample.map(lambda tensor: tensor.to("cpu"))
            _, columns, seed_columns = gather_columns(self._rows.features, self._choice, sample)
            of_nodes, of_seeds = (
                {
                    t: {name: rows.to(self._rows.device) for name, rows in of.items()}
                    for t, of in found.items()
                }
                for found in (columns, seed_columns)
            )
            return replace(
                sent,
                columns=joined_columns(names.of_nodes, sent.columns, of_nodes),
                seed_columns=joined_columns(names.of_seeds, sent.seed_columns, of_seeds),
            )

        sent, arrival = transfer.after_copies(issued.copied.sent, gather)
        traffic = _sum(issued.traffic, _since(before, peers), {"device_cache_rows": 0, REPEATS: 1})
        return replace(sent, arrival=arrival, spans=issued.sent.spans, traffic=traffic)

    @property
    def _swap(self) -> RowSwap:
        assert self._format is not None, "prepare comes first"
        return RowSwap(self._rows, self._format)

    def _sampled(self, seeds_and_key: tuple[Seeds, DrawKey]) -> list[Tensor]:
        """Return the ids that a batch asks for, by part, on the device."""
        sample = self._host.local.sampler.sample(*seeds_and_key)
        seed_nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        drawn = Drawn(sample, seed_nodes, {}, {}).map(lambda tensor: tensor.to(self._rows.device))
        return self._asked(drawn, self._cached_slots(drawn))

    def _cached_slots(self, drawn: Drawn) -> dict[NodeType, Tensor]:
        """Return the slot of each node in the cache on the device, or -1; the host does not wait."""
        return {t: slots.found(drawn.sample.nodes[t]) for t, slots in self._slots.items()}

    def _asked(self, drawn: Drawn, slots: Mapping[NodeType, Tensor]) -> list[Tensor]:
        """Return the ids that a batch asks for, by part; instead of a cached row, the first row again.

        Shapes therefore do not depend on the cache, and the host does not wait for the number of hits.
        """
        ids = [part.ids(drawn) for part in self._parts]
        return [
            of_part
            if part.of_seeds or part.node_type not in slots
            else torch.where(slots[part.node_type] < 0, of_part, of_part[:1])
            for part, of_part in zip(self._parts, ids, strict=True)
        ]

    def _with_columns(
        self, sent: Drawn, rows: Sequence[Mapping[str, Tensor]], slots: Mapping[NodeType, Tensor]
    ) -> Drawn:
        """Add the exchanged columns, with the rows that are cached on the device."""
        columns: dict[NodeType, Mapping[str, Tensor]] = {}
        seed_columns: dict[NodeType, dict[str, Tensor]] = {t: {} for t in self._choice.of_seeds}
        for part, of_part in zip(self._parts, rows, strict=True):
            if part.of_seeds:
                seed_columns[part.node_type] |= of_part
            elif part.node_type in slots:
                columns[part.node_type] = self._filled(part.node_type, of_part, slots[part.node_type])
            else:
                columns[part.node_type] = of_part
        for node_type, names in self._choice.of_seeds.items():
            index, of_type = sent.sample.seed_index[node_type], columns.get(node_type, {})
            seed_columns[node_type] |= {name: of_type[name][index] for name in names if name in of_type}
        of_all = self._host.local.columns
        return replace(
            sent,
            columns=joined_columns(of_all.of_nodes, sent.columns, columns),
            seed_columns=joined_columns(of_all.of_seeds, sent.seed_columns, seed_columns),
        )

    def _filled(self, node_type: NodeType, columns: Mapping[str, Tensor], slots: Tensor) -> dict[str, Tensor]:
        """Return the columns with the rows in the cache; the others are exchanged."""
        assert self._cache is not None
        wanted = Rows(slots.clamp(min=0), tuple(columns), as_float32=self._widened(node_type))
        filled = {}
        for name, others in columns.items():
            # The slots are valid: checking them would wait for the device.
            cached = column_reference(self._cache.rows.column(node_type, name, wanted), wanted.ids)
            is_cached = (slots >= 0).view(-1, *[1] * (others.dim() - 1))
            filled[name] = torch.where(is_cached, cached, others)
        return filled

    def _widened(self, node_type: NodeType) -> frozenset[str]:
        return self._choice.as_float32.get(node_type, frozenset())


def _marks(peers: Peers, request: BatchRequest) -> tuple[list[int], list[int]]:
    ids, rows = (peers.mark(message, request.epoch, request.step) for message in (ASKING, ANSWERING))
    return ids, rows


def _copied_to_host(tensor: Tensor) -> Tensor:
    """Issue a copy to pinned memory of the host, and return it."""
    on_host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return on_host.copy_(tensor, non_blocking=True)


def _since(before: Mapping[str, float], peers: Peers) -> dict[str, float]:
    """Return the increase of the peers' counters since then."""
    return {name: count - before.get(name, 0) for name, count in peers.counts.items()}


def _sum(*counts: Mapping[str, float]) -> dict[str, float]:
    names = dict.fromkeys(name for of in counts for name in of)
    return {name: sum(of.get(name, 0) for of in counts) for name in names}
