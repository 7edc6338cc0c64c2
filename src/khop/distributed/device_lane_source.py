"""Batches of a partitioned graph whose feature rows are exchanged between GPUs.

Lanes draw the batches. The consumer's thread issues the exchanges, over the communicator of gradients: all
ranks then issue exchanges and gradients in the order of their training loop. In two threads or over two
communicators, the order would differ between ranks, and NCCL could wait forever.
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
    row_counts,
    row_parts,
    without,
)
from khop.draw import DrawKey
from khop.errors import Outcome
from khop.kernels.memory import pinned_results
from khop.loading.columns import ColumnChoice
from khop.loading.device.device_caching import rows_in_cache
from khop.loading.device.streams import Streams
from khop.loading.device.transfer import Transfer
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, Drawn
from khop.sampling.seeds import Seeds
from khop.schema import NodeType

WarmUp = Callable[[], Sequence[tuple[Seeds, DrawKey]]]
REPEATS = "repeated_exchanges"
_AHEAD = 1  # batches whose exchange is issued before the host waits for the one before them


@dataclass(frozen=True, eq=False)
class _Copied:
    """A batch in transfer to the device, without the columns that are exchanged there."""

    request: BatchRequest
    host: Drawn  # the batch on the host, until the exchange is known to be complete
    sent: Drawn
    traffic: Mapping[str, float]  # of the draw


@dataclass(frozen=True, eq=False)
class _Issued:
    """A batch with an issued exchange."""

    copied: _Copied
    sent: Drawn
    status: Tensor  # on the host, valid once the batch has arrived
    traffic: Mapping[str, float]  # of the draw and the exchange


class DeviceLaneSource:
    """A batch source over feature rows in the device memory of all ranks; see BatchSource.

    Its batches are those of `host`, bit for bit. Lanes draw batches on the CPU and issue their copies. The
    consumer's thread issues the exchange of the next batch, and then waits for the status of the current one:
    one wait per batch. If a rank needs more rows than fit in a message, all ranks detect it and repeat the
    exchange over the host with messages of exact sizes.
    """

    def __init__(
        self, host: LaneSource, choice: ColumnChoice, rows: RankRows, streams: Streams, warm_up: WarmUp
    ) -> None:
        """`choice` has the columns in `rows`; the CPU gathers the other columns of `host`."""
        self._host = host
        self._choice = choice
        self._rows = rows
        self._streams = streams
        self._warm_up = warm_up
        self._parts = tuple(row_parts(choice))
        local = host.local
        others = without(local.columns, choice)
        features = None if others.is_empty else local.features
        self._drawing = replace(local, columns=others, features=features, on_device=None, transfer=None)
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
        """Draw batches in lanes, and exchange their rows in this thread; see BatchSource and `Lanes.map`.

        `prefetch_bytes` has no effect.
        """
        ahead = min(_AHEAD, in_flight.prefetch - 1)
        drawing = self._drawing.with_threads(in_flight.threads)
        transfer = Transfer(self._streams)
        copy = partial(self._copied, drawing, transfer)
        issued: deque[Outcome[_Issued]] = deque()
        lanes = self._host.lanes
        with closing(lanes.map(copy, requests, in_flight.prefetch - ahead, place_of)) as copied:

            def taken(number: int) -> Drawn:
                with self._streams.selected():
                    while len(issued) <= min(ahead, len(requests) - number - 1):
                        issued.append(Outcome.of(lambda: self._issue(transfer, next(copied))))
                        if issued[-1].error is not None:  # raised instead of yielding its batch
                            break
                    return self._finish(transfer, issued.popleft().given())

            yield from map(taken, range(len(requests)))
            next(copied, None)  # ends the lanes

    def _copied(self, drawing: LocalSource, transfer: Transfer, request: BatchRequest) -> _Copied:
        """Draw a batch and issue its copy, in a lane. Does not wait for the device."""
        peers, before = self._host.lanes.peers, dict(self._host.lanes.peers.counts)
        with pinned_results():
            drawn = self._with_cached(drawing.draw(request))
        sent, arrival = transfer.send(drawn)
        return _Copied(request, drawn, sent.on_its_way(arrival), _since(before, peers))

    def _issue(self, transfer: Transfer, copied: _Copied) -> _Issued:
        """Issue the exchange of a batch. Does not wait for the device."""
        peers, begun, status = self._host.lanes.peers, monotonic(), list[Tensor]()

        def exchange(sent: Drawn) -> Drawn:
            asked = [Asked(part.ids(sent), self._widened(part.node_type)) for part in self._parts]
            swapped = self._swap.issue(peers, _marks(peers, copied.request), asked)
            on_host = torch.empty_like(swapped.status, device="cpu", pin_memory=swapped.status.is_cuda)
            status.append(on_host.copy_(swapped.status, non_blocking=True))
            return self._with_columns(sent, swapped.rows)

        exchanged, arrival = transfer.after_copies(copied.sent, exchange)
        traffic = _sum(copied.traffic, message_counts(self._swap.format, peers, monotonic() - begun))
        return _Issued(copied, replace(exchanged, arrival=arrival), status[0], traffic)

    def _finish(self, transfer: Transfer, issued: _Issued) -> Drawn:
        """Wait for the status of a batch; repeat its exchange if some rank had too many rows."""
        peers, copied, arrival = self._host.lanes.peers, issued.copied, issued.sent.arrival
        assert arrival is not None
        peers.wait_until(arrival.made.query, ANSWERING)
        status = SwapStatus.of(peers, _marks(peers, copied.request), issued.status)
        if status.overflowed:
            self.repeats += 1
            return self._repeated(transfer, issued)
        counts = row_counts(self._rows, self._parts, copied.host, status.requested)
        return replace(issued.sent, traffic=_sum(issued.traffic, counts, {REPEATS: 0}))

    def _repeated(self, transfer: Transfer, issued: _Issued) -> Drawn:
        """Gather the columns of a batch again, over the host with messages of exact sizes. Collective."""
        peers, drawn = self._host.lanes.peers, issued.copied.host
        before = dict(peers.counts)
        with pinned_results():
            _, columns, seed_columns = gather_columns(self._rows.features, self._choice, drawn.sample)
        names = self._host.local.columns
        gathered = replace(
            drawn,
            columns=joined_columns(names.of_nodes, drawn.columns, columns),
            seed_columns=joined_columns(names.of_seeds, drawn.seed_columns, seed_columns),
            cached_rows={},
        )
        sent, arrival = transfer.send(gathered)
        traffic = _sum(issued.traffic, _since(before, peers), {"device_cache_rows": 0, REPEATS: 1})
        return replace(sent, arrival=arrival, spans=issued.sent.spans, traffic=traffic)

    @property
    def _swap(self) -> RowSwap:
        assert self._format is not None, "prepare comes first"
        return RowSwap(self._rows, self._format)

    def _sampled(self, seeds_and_key: tuple[Seeds, DrawKey]) -> Drawn:
        """Return a batch without columns."""
        sample = self._host.local.sampler.sample(*seeds_and_key)
        seed_nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        return self._with_cached(Drawn(sample, seed_nodes, {}, {}))

    def _with_cached(self, drawn: Drawn) -> Drawn:
        """Look up the rows that are cached on the device, possibly including rows of seeds."""
        cache = self._host.local.on_device
        of_nodes = ColumnChoice(self._choice.of_nodes, as_float32=self._choice.as_float32)
        found = {} if cache is None else rows_in_cache(cache, of_nodes, drawn.sample)
        return replace(drawn, cached_rows=found)

    def _with_columns(self, sent: Drawn, rows: Sequence[Mapping[str, Tensor]]) -> Drawn:
        """Add the exchanged columns, with the rows that are cached on the device."""
        columns: dict[NodeType, Mapping[str, Tensor]] = {}
        seed_columns: dict[NodeType, dict[str, Tensor]] = {t: {} for t in self._choice.of_seeds}
        for part, of_part in zip(self._parts, rows, strict=True):
            if part.of_seeds:
                seed_columns[part.node_type] |= of_part
                continue
            cached = sent.cached_rows.get(part.node_type)
            columns[part.node_type] = of_part if cached is None else cached.fill(of_part)
        for node_type, names in self._choice.of_seeds.items():
            index, of_type = sent.sample.seed_index[node_type], columns.get(node_type, {})
            seed_columns[node_type] |= {name: of_type[name][index] for name in names if name in of_type}
        of_all = self._host.local.columns
        return replace(
            sent,
            columns=joined_columns(of_all.of_nodes, sent.columns, columns),
            seed_columns=joined_columns(of_all.of_seeds, sent.seed_columns, seed_columns),
            cached_rows={},
        )

    def _widened(self, node_type: NodeType) -> frozenset[str]:
        return self._choice.as_float32.get(node_type, frozenset())


def _marks(peers: Peers, request: BatchRequest) -> tuple[list[int], list[int]]:
    ids, rows = (peers.mark(message, request.epoch, request.step) for message in (ASKING, ANSWERING))
    return ids, rows


def _since(before: Mapping[str, float], peers: Peers) -> dict[str, float]:
    """Return the increase of the peers' counters since then."""
    return {name: count - before.get(name, 0) for name, count in peers.counts.items()}


def _sum(*counts: Mapping[str, float]) -> dict[str, float]:
    names = dict.fromkeys(name for of in counts for name in of)
    return {name: sum(of.get(name, 0) for of in counts) for name in names}
