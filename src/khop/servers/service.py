"""Request processing of a server: stateless across batches, independent of the transport.

The size limit of a request is computed from fanouts and `Rule.most` before any work.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from time import monotonic
from types import MappingProxyType
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from khop.batch import num_bytes
from khop.errors import Unsupported
from khop.graph.features.table import NO_COLUMNS
from khop.graph.rule import Hop
from khop.graph.rule_arrays import check_edge_type
from khop.graph.store import GraphStore
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource
from khop.loading.source import BatchRequest
from khop.sampling.outputs import Output
from khop.sampling.sampler import Expansion, NeighborSampler, Sampler, sampler_of
from khop.sampling.seeds import SeedLinks, SeedList, Seeds
from khop.schema import EdgeType, NodeType, Schema, Type
from khop.servers import messages
from khop.servers.access import Buffer, Role
from khop.servers.answers import ANSWERS, described_graph, seed_list
from khop.servers.batch_wire import sent_batch
from khop.servers.codec import DTYPES, Outgoing, Tensors, json_of, parsed
from khop.servers.errors import Cancelled, InvalidRequest, TooLarge, UnknownSettings, as_server_error
from khop.servers.parts.served import PartAnswers
from khop.servers.registry import BUILTIN, Registry
from khop.servers.views import Served, Viewed

_NODE, _OFFSET, _EDGE = 8, 8, 4  # bytes of a node id, an entry of indptr, and an entry of indices
_SEED = 6 * _NODE  # id and row of a seed; ends, position and label of a link
_IDS, _WEIGHT = 8, 4  # bytes of the id and the weight of an edge


def most_bytes(
    sampler: Sampler,
    columns: ColumnChoice,
    seeds: Mapping[NodeType, int],
    label_bytes: int = 0,
    nodes: Mapping[NodeType, Tensor] = MappingProxyType({}),
) -> int | None:
    """Return an upper bound on the bytes of a batch with these seeds; None for custom samplers.

    `label_bytes` is the size of link labels. `nodes` are the seeds, if known: a first hop to all neighbors
    then counts their edges instead of all edges of the graph.
    """
    try:
        neighbors = sampler.for_kernels().neighbors
    except Unsupported:
        return None
    widths = _Widths(sampler.graph.schema, columns)
    reach = _Reach(neighbors, dict.fromkeys(sampler.graph.schema.node_types, 0) | dict(seeds), nodes)
    total = 0
    for hop in neighbors.hops:
        edges, rows = reach.expand(hop)
        per_edge = (
            _EDGE
            + _IDS * (hop.edge_ids + hop.rule.has_times)
            + _WEIGHT * any(map(hop.rule.has_weights, hop.fanouts.values()))
        )
        total += sum(count * (per_edge + widths.of_edge(t)) for t, count in edges.items())
        total += sum(_OFFSET * (rows.get(t[2], 0) + 1) for t in edges)
    if neighbors.expansion is Expansion.SUBGRAPH:  # one graph with a row for every node
        total += sum(_OFFSET * (reach.nodes[t[2]] + 1) for t in sampler.graph.schema.edge_types)
    if neighbors.output is not Output.DIRECTIONAL:  # all edges among the nodes, or both directions
        total = 2 * total + sum(
            sampler.graph.num_edges(t) * (_EDGE + _IDS + widths.of_edge(t))
            for t in sampler.graph.schema.edge_types
        )
    per_node = _NODE * (1 + neighbors.is_disjoint)  # with its tree
    total += sum(count * (per_node + widths.of_node(t)) for t, count in reach.nodes.items())
    return total + label_bytes + sum(count * (_SEED + widths.of_seed(t)) for t, count in seeds.items())


@dataclass(frozen=True)
class NegativesPerLink:
    """Negatives per link that a sampler draws, by the end that they replace."""

    sources: int
    destinations: int

    @classmethod
    def of(cls, sampler: Sampler) -> NegativesPerLink:
        """Return the numbers of negatives that a sampler draws per link, 0 if none."""
        negatives = sampler.settings().get("negatives")
        ends = {"source": 0, "destination": 0}
        for part in getattr(negatives, "parts", (negatives,)):
            corrupt = getattr(part, "corrupt", "destination")
            for end in ends if corrupt == "both" else (corrupt,):
                ends[end] += getattr(part, "per_positive", 0)
        return cls(ends["source"], ends["destination"])


def label_bytes(seeds: Seeds, drawn: NegativesPerLink) -> int:
    """Return the bytes of the labels of links and their negatives."""
    links = [] if seeds.links is None else list(seeds.links.by_type.values())
    per_link = 1 + drawn.sources + drawn.destinations
    return sum(
        of_type.labels.nbytes * (per_link + _given(of_type))
        for of_type in links
        if of_type.labels is not None
    )


def seed_counts(seeds: Seeds, drawn: NegativesPerLink) -> dict[NodeType, int]:
    """Return the number of seed nodes by type, including the ends of links and negatives."""
    counts = {t: ids.numel() for t, ids in seeds.nodes.items()}
    for (source, _, destination), links in ({} if seeds.links is None else seeds.links.by_type).items():
        count = links.positions.numel()
        counts[source] = counts.get(source, 0) + count * (1 + drawn.sources)
        of_destination = 1 + drawn.destinations + _given(links)
        counts[destination] = counts.get(destination, 0) + count * of_destination
    return counts


def _given(links: SeedLinks) -> int:
    """Return the number of given negatives of each link."""
    return 0 if links.negatives is None else links.negatives.shape[1]


@dataclass(frozen=True)
class _Widths:
    """Bytes per row of the columns."""

    schema: Schema
    columns: ColumnChoice

    def of_node(self, type_: NodeType) -> int:
        return self._bytes(type_, self.columns.of_nodes.get(type_, ()))

    def of_seed(self, type_: NodeType) -> int:
        return self._bytes(type_, self.columns.of_seeds.get(type_, ()))

    def of_edge(self, type_: EdgeType) -> int:
        return self._bytes(type_, self.columns.of_edges.get(type_, ()))

    def _bytes(self, type_: Type, names: Sequence[str]) -> int:
        specs = [(name, self.schema.columns[type_][name]) for name in names]
        widened = self.columns.as_float32.get(type_, frozenset())
        return sum(
            math.prod(spec.shape) * (4 if name in widened else DTYPES[spec.dtype].itemsize)
            for name, spec in specs
        )


@dataclass
class _Reach:
    """Upper bound on the nodes that the hops so far have reached."""

    sampler: NeighborSampler
    nodes: dict[NodeType, int]
    seeds: Mapping[NodeType, Tensor]  # ids, if known
    last: dict[NodeType, int] = field(default_factory=dict)  # new at the last hop

    def expand(self, hop: Hop) -> tuple[dict[EdgeType, int], dict[NodeType, int]]:
        """Add a hop; return an upper bound on its edges by type, and the rows that it expands."""
        is_layered = self.sampler.expansion is Expansion.LAYERED
        rows = dict(self.nodes) if is_layered or not self.last else self.last
        edges = {t: self._edges(t, fanout, hop, rows) for t, fanout in hop.fanouts.items()}
        before = dict(self.nodes)
        for (source, _, _), count in edges.items():
            limit = None if self.sampler.is_disjoint else self.sampler.graph.num_nodes(source)
            reached = self.nodes[source] + count
            self.nodes[source] = reached if limit is None else min(reached, max(limit, before[source]))
        self.last = {t: count - before[t] for t, count in self.nodes.items()}
        return edges, rows

    def _edges(self, edge_type: EdgeType, fanout: int, hop: Hop, rows: Mapping[NodeType, int]) -> int:
        """Return an upper bound on edges of a type: the rule's, or all edges of the graph (per tree)."""
        most, count = hop.rule.most(fanout), rows.get(edge_type[2], 0)
        if most is not None:
            return count * most
        if hop.number == 1 and edge_type[2] in self.seeds:
            return _degrees(self.sampler.graph, edge_type, self.seeds[edge_type[2]])
        return self.sampler.graph.num_edges(edge_type) * (
            count if self.sampler.is_disjoint else min(count, 1)
        )


def _degrees(graph: GraphStore, edge_type: EdgeType, nodes: Tensor) -> int:
    """Return the number of in-edges of nodes; for invalid ids, the draw raises the error."""
    known = nodes[(nodes >= 0) & (nodes < graph.num_nodes(edge_type[2]))]
    return int(graph.in_degrees(edge_type, known).sum())


_CPU = torch.device("cpu")


def _none() -> None:
    return None


def _same(found: SeedList) -> SeedList:
    return found


@dataclass(eq=False)
class Prepared:
    """The parts of a batch source. Expensive parts are made once, for the first batch.

    Only the server refers to views, and may drop them. A source or a list of links is dropped with its view,
    and made again for the next batch. Threads may share the object.
    """

    served: Served
    registry: Registry
    given: messages.SourceSettings
    sampler: Sampler  # over the whole graph, which bounds the batch size
    columns: ColumnChoice
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sources: WeakKeyDictionary[Viewed, LocalSource] = field(default_factory=WeakKeyDictionary)
    _list: Callable[[], SeedList | None] = _none

    @classmethod
    def of(cls, served: Served, registry: Registry, given: messages.SourceSettings) -> Prepared:
        """Read settings; ValueError names the setting that does not fit the graph or is not registered."""
        graph = served.whole.graph
        kept = [step.edge_types for step in given.view if isinstance(step, messages.Only)]
        if kept:
            for edge_type in kept[-1]:
                check_edge_type(edge_type, graph.schema)
            graph = graph.only(kept[-1])
        sampler = _sampler(registry, given, graph)
        given.check_columns(graph.schema)
        return cls(served, registry, given, sampler, given.columns)

    @property
    def drawn_ends(self) -> NegativesPerLink:
        """Negatives that the sampler draws for each link."""
        return NegativesPerLink.of(self.sampler)

    def source(self) -> LocalSource:
        """Return the source of batches, over the view of the graph."""
        viewed = self.served.viewed(self.given.view)
        with self._lock:
            if viewed not in self._sources:
                features = None if self.columns.is_empty else viewed.features
                if features is NO_COLUMNS:
                    raise ValueError("columns are requested, but the graph has none: leave them out")
                sampler = _sampler(self.registry, self.given, viewed.graph)
                self._sources[viewed] = LocalSource(sampler, features, self.columns, _CPU)
            return self._sources[viewed]

    def knows(self, asked: Seeds) -> bool:
        """Return True if the seeds of a request do not need a list, or the list is ready."""
        return asked.listed is None or self._list() is not None

    def seeds(self, asked: Seeds) -> Seeds:
        """Return the seeds of a request, looked up in the list if they are given by position."""
        if asked.listed is None:
            return asked
        seeds = self.seed_list()
        order, total = asked.listed.order, sum(seeds.counts.values())
        if order.numel() and not 0 <= int(order.min()) <= int(order.max()) < total:
            raise ValueError(f"seeds {int(order.min())} to {int(order.max())}: the list has {total}")
        return seeds.taken(asked.listed)

    def seed_list(self) -> SeedList:
        """Return the list that the settings name; ValueError if they do not name one."""
        with self._lock:
            found = self._list()
            if found is None:
                reference = self.given.seeds
                if reference is None:
                    raise ValueError("seeds by number: the settings name no list")
                found = seed_list(self.served, reference)
                of_view = isinstance(reference, messages.LinksOfPart)
                self._list = ref(found) if of_view else partial(_same, found)
            return found

    def listed_counts(self, seeds: Seeds) -> dict[NodeType, int] | None:
        """Return an upper bound on seed nodes by type for positions in a list; None for other seeds."""
        if seeds.listed is None:
            return None
        count, found = seeds.listed.mine.numel(), dict[NodeType, int]()
        drawn = self.drawn_ends
        of_link = 2 + drawn.sources + drawn.destinations + self._given_negatives()
        for type_ in self.seed_list().counts:
            for end in dict.fromkeys([type_] if isinstance(type_, str) else (type_[0], type_[2])):
                found[end] = count * (1 if isinstance(type_, str) else of_link)
        return found

    def _given_negatives(self) -> int:
        """Return an upper bound on the stored negatives per link of the list."""
        reference = self.given.seeds
        last = reference.view[-1] if isinstance(reference, messages.LinksOfPart) and reference.view else None
        return last.split.columns.negatives if isinstance(last, messages.SplitPart) else 0


def _sampler(registry: Registry, given: messages.SourceSettings, graph: GraphStore) -> Sampler:
    return sampler_of(registry.made(given.sampler, graph))


MOST_REQUEST = 1 << 28  # bytes
_SETTINGS = 64  # cached at a time; clients send dropped ones again

Cancelling = Callable[[], bool]


def never() -> bool:
    """Return False: the client is still waiting."""
    return False


@dataclass(frozen=True)
class Job:
    """An accepted request. `run` does the work; several threads may run several jobs."""

    stage: str  # for logs
    most_bytes: int | None  # of the answer, if bounded before the work
    make: Callable[[Cancelling], Outgoing]
    role: Role = Role.CLIENT  # that a token needs to send it

    def run(self, cancelled: Cancelling = never) -> Iterator[memoryview]:
        """Do the work, then return an iterator over the answer: its header, and the pieces of its body.

        Iterating costs no more than slicing memory. All errors are ServerErrors.
        """
        try:
            made = self.make(cancelled)
            start = memoryview(made.header)
        except Exception as error:
            raise as_server_error(error) from error
        return chain([start], made.pieces())


class Service:
    """Answers of one server to requests about its graph. Threads may share it.

    Batches that could exceed `max_batch_bytes`, judged by the fanouts, the rule and the columns, are refused
    before any work. With a sampler that has no such bound, a batch is refused after it is made. `part`
    answers other servers, if this one has a part of the graph.
    """

    def __init__(
        self,
        served: Served,
        registry: Registry = BUILTIN,
        max_batch_bytes: int | None = None,
        part: PartAnswers | None = None,
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
        part = None if self._part is None else self._part.part
        described = described_graph(self._served, self._max_batch_bytes, part)
        return json_of(messages.CODEC.write(described, Tensors()))

    def counters(self) -> Mapping[str, int]:
        """Return the counters since the start, and the number of cached views.

        The counters are batches, their bytes, other answers, and refusals by code.
        """
        of_part = {} if self._part is None else self._part.counters()
        with self._lock:
            counts = dict(self._counts)
        return {**counts, **of_part, **self._served.views.counts()}

    def accept(self, request: Buffer) -> Job:
        """Check a request, in under a millisecond for known settings. All errors are ServerErrors."""
        try:
            frame = parsed(request, MOST_REQUEST, "request")
            kind, served, part = frame.text("kind"), self._served, self._part
            messages.check_graph(frame.text("graph"), served.fingerprint)
            if part is not None and kind in messages.PART_REQUESTS:
                return Job(
                    kind, None, lambda cancelled: self._counted(kind, part.answered(kind, frame)), Role.SERVER
                )
            if kind not in messages.CLIENT_REQUESTS:
                known = ", ".join(messages.CLIENT_REQUESTS)
                raise InvalidRequest(f"request of kind {kind!r}: this server answers {known}")
            asked: object = frame.body(messages.CODEC, messages.CLIENT_REQUESTS[kind])
            if isinstance(asked, messages.BatchOf):
                return self._batch(asked)
            return Job(kind, None, lambda cancelled: self._answered(kind, asked))
        except Exception as error:
            refused = as_server_error(error)
            self._count(f"refused, {refused.code}")
            raise refused from error

    def _answered(self, kind: str, asked: object) -> Outgoing:
        body = ANSWERS[kind](self._served, asked, self._max_batch_bytes)
        return self._counted(kind, self._message(kind, body))

    def _message(self, kind: str, body: object) -> Outgoing:
        return Outgoing(messages.CODEC, body, {"kind": kind, "graph": self._served.fingerprint})

    def _batch(self, query: messages.BatchOf) -> Job:
        prepared, seeds = self._prepared(query), query.checked_seeds()
        # A list, such as one of a link split, may take minutes to make, and in-degrees of nodes of other
        # parts take a request. In both cases the job checks the batch size.
        limit = None
        if prepared.knows(seeds) and self._part is None:
            limit = _most(prepared, seeds, self._max_batch_bytes)
        return Job(query.stage, limit, lambda cancelled: self._made(prepared, query, seeds, cancelled))

    def _made(
        self, prepared: Prepared, query: messages.BatchOf, seeds: Seeds, cancelled: Cancelling
    ) -> Outgoing:
        if cancelled():
            raise Cancelled(f"{query.stage}: the client no longer waits for it")
        started = monotonic()
        if self._max_batch_bytes is not None:
            _most(prepared, seeds, self._max_batch_bytes)
        source = prepared.source()
        request = BatchRequest.of(prepared.seeds(seeds), query.key, query.epoch, query.step)
        drawn = source.draw(request)
        size = num_bytes(drawn)
        if self._max_batch_bytes is not None and size > self._max_batch_bytes:
            raise _too_large(f"has {size:,}", self._max_batch_bytes, seeds)
        self._count("batch bytes", size)
        batch, seconds = sent_batch(drawn, started), monotonic() - started
        body = messages.BatchAnswer(query.settings, query.epoch, query.step, seconds, batch)
        return self._counted("batches", self._message(messages.BATCH, body))

    def _prepared(self, query: messages.BatchOf) -> Prepared:
        """Return the parsed settings of a request, from the cache or from the request."""
        with self._lock:
            if query.settings in self._settings:
                self._settings.move_to_end(query.settings)
                return self._settings[query.settings]
        if query.given is None:
            raise UnknownSettings(
                f"settings {query.settings}: this server does not have them; send them again"
            )
        query.given.check(self._served.fingerprint)
        if query.given.digest != query.settings:
            raise ValueError(f"settings: their hash is {query.given.digest}, named is {query.settings}")
        prepared = Prepared.of(self._served, self._registry, query.given)
        with self._lock:
            if query.settings in self._settings:  # another thread was first
                return self._settings[query.settings]
            self._settings[query.settings] = prepared
            while len(self._settings) > _SETTINGS:
                self._settings.popitem(last=False)
            self._counts["settings"] += 1
        return prepared

    def _counted(self, name: str, message: Outgoing) -> Outgoing:
        self._count(name)
        return message

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by


def _most(prepared: Prepared, seeds: Seeds, allowed: int | None) -> int | None:
    """Return an upper bound on the bytes of a batch; TooLarge if it exceeds the limit."""
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
            f"the batch of node {node} of {node_type!r} alone {found} bytes, but this server makes batches "
            f"of at most {most:,}; start the servers with a larger --max-batch-bytes, or use smaller fanouts"
        )
    return TooLarge(
        f"the batch {found} bytes, but this server makes batches of at most {most:,}; use a smaller "
        "batch_size or fanouts (--evaluation-batch-edges in exact evaluation), or start the servers with a "
        "larger --max-batch-bytes"
    )
