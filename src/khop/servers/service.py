"""The work of a server, without any network: a request in, the answer out, and no state of an epoch."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from time import monotonic

import khop.servers.lists as lists
from khop.batch import num_bytes
from khop.draw import RANDOMNESS
from khop.loading.source import BatchRequest
from khop.sampling.sampler import Seeds
from khop.servers.access import Role
from khop.servers.batch_wire import written_batch
from khop.servers.bound import label_bytes, most_bytes, seed_counts
from khop.servers.description import described_graph
from khop.servers.errors import Cancelled, TooLarge, UnknownSettings, as_server_error
from khop.servers.frame import VERSION, Tensors, header, parsed, pieces
from khop.servers.json_fields import Plain, written
from khop.servers.prepared import Prepared
from khop.servers.registry import BUILTIN, Registry
from khop.servers.request_wire import BATCH, BatchQuery, read_query
from khop.servers.served import AnswersServers, Served
from khop.servers.settings import check_graph, check_versions, digest_of
from khop.servers.transport import Buffer

MOST_REQUEST = 1 << 28  # bytes
_SETTINGS = 64  # kept at a time; clients send others again

Cancelling = Callable[[], bool]
Made = tuple[dict[str, Plain], Tensors]


def never() -> bool:
    """Return False: the client waits."""
    return False


@dataclass(frozen=True)
class Job:
    """An accepted request. `run` does the work; several threads may run several jobs."""

    stage: str  # for logs
    most_bytes: int | None  # of the answer, if a limit is known before the work
    make: Callable[[Cancelling], Made]
    role: Role = Role.CLIENT  # of a token that may send it

    def run(self, cancelled: Cancelling = never) -> Iterator[memoryview]:
        """Do the work, then return an iterator over the answer: its header, and the pieces of its body.

        Iterating costs no more than slicing memory. All errors are ServerErrors.
        """
        try:
            fields, tensors = self.make(cancelled)
            start = memoryview(header(fields, tensors.all))
        except Exception as error:
            raise as_server_error(error) from error
        return chain([start], pieces(tensors.all))


class Service:
    """Answers of one server to requests about its graph. Threads may share it.

    `max_batch_bytes` refuses batches that could be larger, before any work: by the fanouts, the rule and the
    columns. A batch of a sampler without such a limit is refused after it is made. `part` answers other
    servers, if this one has a part of the graph.
    """

    def __init__(
        self,
        served: Served,
        registry: Registry = BUILTIN,
        max_batch_bytes: int | None = None,
        part: AnswersServers | None = None,
    ) -> None:
        self._served, self._part = served, part
        self._registry = registry
        self._max_batch_bytes = max_batch_bytes
        self._settings: OrderedDict[str, Prepared] = OrderedDict()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self._served.name

    def description(self) -> bytes:
        """Return versions and graph, in JSON: types, columns, counts and splits, but no data."""
        graph = described_graph(self._served)
        own: dict[str, Plain] = {"name": self.name, "max_batch_bytes": self._max_batch_bytes}
        if self._part is not None:
            own["part"] = self._part.part
        return written({"wire": VERSION, "randomness": RANDOMNESS, **own, **graph})

    def counters(self) -> Mapping[str, int]:
        """Return what was done since the start, and the views that are kept.

        Counted are batches, their bytes, other answers, and refusals by code.
        """
        of_part = {} if self._part is None else self._part.counters()
        with self._lock:
            counts = dict(self._counts)
        return {**counts, **of_part, **self._served.views.counts()}

    def accept(self, request: Buffer) -> Job:
        """Check a request, in well under a millisecond but for new settings. All errors are ServerErrors."""
        try:
            frame = parsed(request, MOST_REQUEST, "request")
            kind = frame.document["kind"].text()
            if kind == BATCH:
                return self._batch(read_query(frame))
            served, limit, part = self._served, self._max_batch_bytes, self._part
            check_graph(frame.document["graph"].text(), served.fingerprint)
            if part is not None and kind in part.kinds:
                return Job(
                    kind,
                    None,
                    lambda cancelled: self._counted(kind, *part.answered(kind, frame)),
                    Role.SERVER,
                )
            return Job(
                kind, None, lambda cancelled: self._counted(kind, *lists.answered(served, kind, frame, limit))
            )
        except Exception as error:
            refused = as_server_error(error)
            self._count(f"refused, {refused.code}")
            raise refused from error

    def _batch(self, query: BatchQuery) -> Job:
        prepared = self._prepared(query)
        # A list may take minutes to make, as one of a split of links, and the in-degrees of nodes of other
        # parts a request: then the job checks the batch.
        limit = None
        if prepared.knows(query.seeds) and self._part is None:
            limit = _most(prepared, query.seeds, self._max_batch_bytes)
        return Job(query.stage, limit, lambda cancelled: self._made(prepared, query, cancelled))

    def _made(self, prepared: Prepared, query: BatchQuery, cancelled: Cancelling) -> Made:
        if cancelled():
            raise Cancelled(f"{query.stage}: the client no longer waits")
        started = monotonic()
        if self._max_batch_bytes is not None:
            _most(prepared, query.seeds, self._max_batch_bytes)
        source = prepared.source()
        request = BatchRequest.of(prepared.seeds(query.seeds), query.key, query.epoch, query.step)
        drawn = source.draw(request)
        size = num_bytes(drawn)
        if self._max_batch_bytes is not None and size > self._max_batch_bytes:
            raise _too_large(f"has {size:,}", self._max_batch_bytes, query.seeds)
        tensors = Tensors()
        fields: dict[str, Plain] = {
            "kind": BATCH,
            "graph": self._served.fingerprint,
            "settings": query.settings,
            "epoch": query.epoch,
            "step": query.step,
            "seconds": monotonic() - started,
            "batch": written_batch(drawn, started, tensors),
        }
        self._count("batch bytes", size)
        return self._counted("batches", fields, tensors)

    def _prepared(self, query: BatchQuery) -> Prepared:
        """Return what the settings of a request mean, from the cache or from the request."""
        with self._lock:
            if query.settings in self._settings:
                self._settings.move_to_end(query.settings)
                return self._settings[query.settings]
        if query.given is None:
            raise UnknownSettings(
                f"settings {query.settings}: this server does not have them; send them again"
            )
        check_versions(query.given, self._served.fingerprint)
        if digest_of(query.given.value) != query.settings:
            raise ValueError(
                f"settings: their hash is {digest_of(query.given.value)}, named is {query.settings}"
            )
        prepared = Prepared.of(self._served, self._registry, query.given)
        with self._lock:
            if query.settings in self._settings:  # another thread was first
                return self._settings[query.settings]
            self._settings[query.settings] = prepared
            while len(self._settings) > _SETTINGS:
                self._settings.popitem(last=False)
            self._counts["settings"] += 1
        return prepared

    def _counted(self, name: str, fields: dict[str, Plain], tensors: Tensors) -> Made:
        self._count(name)
        return fields, tensors

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by


def _most(prepared: Prepared, seeds: Seeds, allowed: int | None) -> int | None:
    """Return the most bytes of a batch; TooLarge if they are more than allowed."""
    counts = prepared.listed_counts(seeds)
    if counts is None:
        counts = seed_counts(seeds, prepared.drawn_ends)
    labels = label_bytes(seeds, prepared.drawn_ends)
    limit = most_bytes(prepared.sampler, prepared.columns, counts, labels, seeds.nodes)
    if limit is not None and allowed is not None and limit > allowed:
        raise _too_large(f"could have {limit:,}", allowed, seeds)
    return limit


def _too_large(found: str, most: int, seeds: Seeds) -> TooLarge:
    if len(one := [(t, int(ids[0])) for t, ids in seeds.nodes.items() if ids.numel()]) == seeds.count == 1:
        ((node_type, node),) = one
        return TooLarge(
            f"the batch of node {node} of {node_type!r} alone {found} bytes, and this server makes batches "
            f"of at most {most:,}; start the servers with a larger --max-batch-bytes, or take smaller fanouts"
        )
    return TooLarge(
        f"the batch {found} bytes, and this server makes batches of at most {most:,}; take a smaller "
        "batch_size or fanouts (--evaluation-batch-edges in exact evaluation), or start the servers with a "
        "larger --max-batch-bytes"
    )
