"""A source of batches that servers make; order, position and prefetching stay with the client."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import monotonic

from khop.batch import num_bytes
from khop.features.store import FeatureStore
from khop.kernels.memory import pinned_results
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.ordered_map import InFlight, ordered_map
from khop.loading.source import (
    SECONDS,
    SERVER,
    SERVER_BYTES,
    SERVER_RETRIES,
    BatchRequest,
    BatchSource,
    Drawn,
)
from khop.sampling.sampler import Sampler, Seeds
from khop.servers.batch_wire import Expected, read_batch
from khop.servers.errors import UnknownSettings
from khop.servers.frame import Frame
from khop.servers.graph import RemoteView
from khop.servers.registry import instance
from khop.servers.request_wire import BATCH, written_query
from khop.servers.settings import Settings
from khop.servers.transport import Answer, Buffer, CallContext


@dataclass(frozen=True)
class RemoteSource:
    """A batch source over servers: the batches of `local`, which has the sampler and columns but no edges."""

    view: RemoteView
    settings: Settings
    local: LocalSource
    beside: FeatureStore | None = None  # columns of this process, gathered here for the nodes of a batch
    _knowing: set[str] = field(default_factory=set, compare=False)  # servers that have the settings

    def prepare(self) -> None:
        """Do nothing: servers build the arrays that draws need at the first batch."""

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch that is waited for."""
        return self._made(None, request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Ask for up to `prefetch` batches at a time, and yield them in order. Closing drops all requests."""
        stop = threading.Event()
        waiting = replace(in_flight, threads=in_flight.prefetch)  # threads only wait: servers do the work
        with closing(ordered_map(partial(self._made, stop), requests, waiting, num_bytes)) as made:
            try:
                yield from made
            finally:
                stop.set()

    @cached_property
    def _expected(self) -> Expected:
        schema, graph = self.local.sampler.graph.schema, self.local.sampler.graph
        return Expected(schema, {t: graph.num_nodes(t) for t in schema.node_types}, self.settings.columns)

    def _made(self, stop: threading.Event | None, request: BatchRequest) -> Drawn:
        transfer = self.local.transfer
        with nullcontext() if transfer is None else pinned_results():
            seeds = request.seeds()
            answer = self._answer(request, seeds, stop)
            drawn = self._with_local_columns(answer.value)
            if seeds.tuple_labels is not None:  # servers get the nodes alone
                drawn = replace(drawn, sample=replace(drawn.sample, tuple_labels=seeds.tuple_labels))
            drawn = replace(drawn, traffic={**drawn.traffic, **self._traffic(answer)})
            if transfer is None:
                return drawn
            sent, arrival = transfer.send(drawn)
            return replace(sent, arrival=arrival)

    def _answer(self, request: BatchRequest, seeds: Seeds, stop: threading.Event | None) -> Answer[Drawn]:
        context = CallContext(BATCH, request.epoch, request.step, stop, words=request.words)

        def read(frame: Frame) -> Drawn:
            given = frame.document
            found = (given["settings"].text(), given["epoch"].whole(), given["step"].whole())
            if found != (self.settings.digest, request.epoch, request.step):
                raise ValueError(f"answer: has settings, epoch and step {found}, asked was another batch")
            origin = monotonic() - given["seconds"].real()
            return read_batch(frame, given["batch"], self._expected, origin)

        def receive(pieces: Iterator[Buffer]) -> Drawn:
            return self.view.read(pieces, BATCH, read)

        def query(with_settings: bool) -> bytes:
            return written_query(
                self.settings, seeds, request.key, request.epoch, request.step, with_settings=with_settings
            )

        # Until all servers have answered, requests carry the settings: another ask may reach another server.
        exchange = self.view.exchange
        try:
            first = exchange.ask(context, query(len(self._knowing) < len(exchange.addresses)), receive)
        except UnknownSettings:
            self._knowing.clear()
            first = exchange.ask(context, query(True), receive)
        self._knowing.add(first.server)
        return first

    def _traffic(self, answer: Answer[Drawn]) -> Mapping[str, float]:
        return {
            SECONDS: answer.wait_s,
            SERVER: answer.place,
            SERVER_RETRIES: answer.retries,
            SERVER_BYTES: answer.wire_bytes,
        }

    def _with_local_columns(self, drawn: Drawn) -> Drawn:
        if self.beside is None:
            return drawn
        sample, columns, seed_columns = gather_columns(self.beside, self.local.columns, drawn.sample)
        return replace(drawn, sample=sample, columns=columns, seed_columns=seed_columns)


def source_of(local: LocalSource, seeds: Mapping[str, object] | None = None) -> BatchSource:
    """Return the source of these batches: on the graph's servers, or `local` if it has none.

    `seeds` refers to a list on the servers; None: requests have the seeds. Columns that are not on the
    servers are gathered here.
    """
    servers = local.sampler.graph.servers
    return local if servers is None else remote_source(servers, local, seeds)


def remote_source(
    servers: object, local: LocalSource, seeds: Mapping[str, object] | None = None
) -> RemoteSource:
    """Return the source of batches on the servers of a view."""
    assert isinstance(servers, RemoteView)
    features, choice = local.features, local.columns
    is_remote = features is not None and features.is_on_servers
    settings = Settings(
        servers.fingerprint,
        servers.view,
        described_sampler(local.sampler),
        choice if is_remote else ColumnChoice(),
        None if seeds is None else dict(seeds),
    )
    return RemoteSource(servers, settings, local, None if is_remote else features)


def described_sampler(sampler: Sampler) -> object:
    """Return plain values from which a server makes the sampler over its graph; or Unsupported."""
    return instance(sampler.__class__, sampler.settings())
