"""Client side of a graph on servers: types, counts and splits are fetched once, the rest on demand.

Servers make the batches. The client decides their order, keeps the position in the epoch, and prefetches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from khop.batch import num_bytes
from khop.draw import RANDOMNESS, DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph.features.store import FeatureStore, FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.folder import ORIGINAL_ID, TimeCutOffs
from khop.graph.needs import Need
from khop.graph.node_ids import Names
from khop.graph.rule import Hop
from khop.graph.rule_arrays import check_edge_type
from khop.graph.store import GraphStore, NumberedGraph, NumberedNodes
from khop.kernels.id_table import Keys, Kind, StringKeys, joined_keys
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
from khop.sampling.links.link_seeds import ListedLinks
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import ListedNodes, Reference, SeedLinks, Seeds
from khop.schema import EdgeType, NodeType, Schema, Specs, Type
from khop.servers import messages
from khop.servers.access import Answer, Buffer, CallContext
from khop.servers.answers import FACTS, MOST_IDS, MOST_NODES
from khop.servers.batch_wire import BatchCheck
from khop.servers.codec import VERSION, parsed_json, received
from khop.servers.connections import Pool
from khop.servers.errors import InvalidAnswer, ServerError, UnknownSettings, WrongVersion
from khop.servers.registry import instance

MOST_ANSWER = 1 << 40  # bytes
_IDS_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 1 << 26
Body = TypeVar("Body")


@dataclass(frozen=True, eq=False)
class RemoteView:
    """A view of the graph on servers, with the connection to them."""

    exchange: Pool
    description: messages.Description
    view: messages.View = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return self.exchange.addresses

    @property
    def name(self) -> str:
        """Name of the graph on the servers."""
        return self.description.name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph."""
        return self.description.fingerprint

    @property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as the graph's import recorded them; None if it records none."""
        return self.description.cut_offs

    def after(self, *steps: messages.Only | messages.EdgesBefore | messages.SplitPart) -> RemoteView:
        """Return the view after further steps."""
        return replace(self, view=(*self.view, *steps))

    def ask(self, kind: str, asked: object, answer: type[Body]) -> Body:
        """Send a request other than for a batch to any server, and return the answer."""
        sent = messages.request(kind, self.fingerprint, asked)
        return self.exchange.ask(
            CallContext(kind), sent, lambda pieces: self.read(pieces, kind, answer)
        ).value

    def read(self, pieces: Iterator[Buffer], kind: str, answer: type[Body]) -> Body:
        """Read an answer; InvalidAnswer if it is for another graph, or does not match its header."""
        with self.checking():
            frame = received(pieces, MOST_ANSWER, "answer")
            if (frame.text("kind"), frame.text("graph")) != (kind, self.fingerprint):
                raise ValueError(f"answer: is not about {kind} of this graph")
            return frame.body(messages.CODEC, answer)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Turn a ValueError about an answer into InvalidAnswer, which names the servers."""
        try:
            yield
        except ServerError:
            raise
        except ValueError as error:
            raise InvalidAnswer(f"a server of {', '.join(self.addresses)}: {error}") from error

    def serves(self, graph: GraphStore) -> bool:
        """Return True if servers of the same graph make the batches of a graph."""
        servers = graph.servers
        return isinstance(servers, RemoteView) and servers.fingerprint == self.fingerprint

    def digest(self, reference: Reference) -> str:
        """Return the digest of a list of seeds."""
        return self.ask(
            "list", messages.ListOf(messages.list_of_seeds(reference)), messages.ListAnswer
        ).digest

    def ids(self, split: messages.NodesOfSplit, count: int) -> Tensor:
        """Return one type's ids of a split, int64 (count), fetched in pieces."""
        pieces = [torch.empty(0, dtype=torch.int64)]
        for first in range(0, count, _IDS_AT_ONCE):
            last = min(count, first + _IDS_AT_ONCE)
            ids = self.ask("ids", messages.IdsOf(split, first, last), messages.IdsAnswer).ids
            if ids.numel() != last - first:
                raise InvalidAnswer(f"answer: has {ids.numel()} ids, asked were {last - first}")
            pieces.append(ids)
        return torch.cat(pieces)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteGraph(NumberedGraph):
    """The edges of a graph on servers, which make whole batches; single hops are not supported."""

    view: RemoteView
    schema: Schema  # after the steps of the view
    nodes: NumberedNodes  # without original ids

    @property
    def servers(self) -> RemoteView:
        """The servers that make batches of this graph."""
        return self.view

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in the whole graph, before links were split off."""
        if edge_type not in self.view.description.edges:
            raise ValueError(f"no edge type {edge_type}; there are {list(self.view.description.edges)}")
        return self.view.description.edges[edge_type]

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the in-degrees of nodes in this view, int64 (nodes), from the servers."""
        check_edge_type(edge_type, self.schema)
        pieces = [_in_degrees(self.view, edge_type, some) for some in nodes.split(MOST_NODES)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Fetch the ids before renumbering, int64 (nodes); None if nodes were never renumbered."""
        if node_type not in self.view.description.renumbered:
            return None
        whole = replace(self.view, view=())
        features = RemoteFeatures(whole.description.schema.columns, whole)
        every = Rows(torch.arange(self.num_nodes(node_type)), (ORIGINAL_ID,))
        return features.gather({node_type: every})[node_type][ORIGINAL_ID]

    def prepare(self, needs: Collection[Need]) -> None:
        """Do nothing: servers build the arrays that draws need."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Raise Unsupported: servers make whole batches."""
        _refuse(self.view, "single hops")

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Raise Unsupported: servers draw negatives as part of a batch."""
        _refuse(self.view, "negatives by themselves")

    def in_one_piece(self, what: str) -> NoReturn:
        """Raise Unsupported: the edges are on the servers."""
        _refuse(self.view, what)

    def only(self, edge_types: Collection[EdgeType]) -> RemoteGraph:
        """Return the graph with only these edge types, here and on the servers."""
        kept = tuple(t for t in self.schema.edge_types if t in edge_types)
        return remote_graph(self.view.after(messages.Only(kept)), self.schema.only(edge_types))

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> NoReturn:
        """Raise Unsupported: links of a graph on servers are split by khop.split_links."""
        _refuse(self.view, "some edges alone")


def remote_graph(view: RemoteView, schema: Schema) -> RemoteGraph:
    """Return the edges of a view with this schema."""
    nodes = NumberedNodes(view.description.nodes, {}, view.description.bounds)
    return RemoteGraph(view, schema, nodes)


def _in_degrees(view: RemoteView, edge_type: EdgeType, nodes: Tensor) -> Tensor:
    """Return the in-degrees of up to as many nodes as one request may have."""
    asked = messages.DegreesOf(view.view, edge_type, messages.some_nodes(nodes))
    with view.checking():
        return view.ask("in-degrees", asked, messages.CountsAnswer).checked(nodes.numel())


def _refuse(view: RemoteView, what: str) -> NoReturn:
    raise Unsupported(
        f"{what}: the graph is on servers ({', '.join(view.addresses)}), which make batches; "
        "give the sampler to a khop.Loader, or open the graph's folder with khop.open_graph"
    )


@dataclass(frozen=True, eq=False)
class RemoteFeatures(FeatureStoreBase):
    """The columns of a graph on servers. Batches contain their columns; other rows are requested."""

    is_on_servers: ClassVar[bool] = True

    columns: Specs
    view: RemoteView

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        return self.columns

    def local_rows(self, type_: Type) -> range:
        """Return an empty mapping: all rows are on the servers."""
        return range(0)

    def gather(self, wanted: Wanted) -> Gathered:
        """Fetch rows from the servers in chunks."""
        found: Gathered = {}
        for type_, rows in wanted.items():
            found[type_] = {}
            for name in rows.columns:
                ids = rows.ids[: rows.limits.get(name, rows.ids.numel())]
                found[type_][name] = self._column(type_, name, ids, rows.as_float32)
        return found

    def _column(self, type_: Type, name: str, ids: Tensor, as_float32: frozenset[str]) -> Tensor:
        if name not in self.columns.get(type_, {}):
            raise ValueError(
                f"no column {name!r} of {type_!r}; there are {sorted(self.columns.get(type_, {}))}"
            )
        width = 8 * max(1, torch.Size(self.columns[type_][name].shape).numel())
        at_once = min(_BYTES_AT_ONCE, self.view.description.max_batch_bytes or _BYTES_AT_ONCE)
        pieces = [self._rows(type_, name, part, as_float32) for part in ids.split(max(1, at_once // width))]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _rows(self, type_: Type, name: str, ids: Tensor, as_float32: frozenset[str]) -> Tensor:
        widened = (name,) if name in as_float32 else ()
        found = self.view.ask(
            "rows", messages.RowsOf(self.view.view, type_, (name,), widened, ids), messages.RowsAnswer
        ).rows
        with self.view.checking():
            shape = (ids.numel(), *self.columns[type_][name].shape)
            if list(found) != [name] or found[name].shape != shape:
                shapes = {column: tuple(rows.shape) for column, rows in found.items()}
                raise ValueError(f"answer: columns of {shapes}, asked were {ids.numel()} rows of {name!r}")
        return found[name]


def listed_splits(view: RemoteView) -> dict[str, dict[NodeType, Tensor | ListedNodes]]:
    """Return the splits of a graph as lists on its servers."""

    def listed(name: str, of_types: Mapping[NodeType, int], node_type: NodeType) -> ListedNodes:
        def fetched(wanted: NodeType) -> Tensor:
            return view.ids(messages.NodesOfSplit(name, (wanted,)), of_types[wanted])

        return ListedNodes(name, {node_type: of_types[node_type]}, fetched, view.digest, view.serves)

    return {
        name: {t: listed(name, of_types, t) for t in of_types}
        for name, of_types in view.description.splits.items()
    }


def view_before(servers: RemoteView, schema: Schema, limit: int) -> tuple[RemoteGraph, RemoteFeatures]:
    """Return the graph with only the edges before a time, and its columns."""
    view = servers.after(messages.EdgesBefore(limit))
    return remote_graph(view, schema), RemoteFeatures(schema.columns, view)


def split_view(
    servers: RemoteView, arguments: messages.SplitArguments
) -> dict[str, Callable[[Schema], tuple[RemoteGraph, RemoteFeatures, ListedLinks]]]:
    """Return the parts of a link split on servers: schema, graph, columns and links of each."""

    def part(name: str, schema: Schema) -> tuple[RemoteGraph, RemoteFeatures, ListedLinks]:
        view = servers.after(messages.SplitPart(arguments, name))
        links = _links(view, name)
        return remote_graph(view, schema), RemoteFeatures(schema.columns, view), links

    return {name: partial(part, name) for name in ("train", "val", "test")}


def _links(view: RemoteView, part: str) -> ListedLinks:
    """Return a list of links on the servers, which split them now unless they already have."""
    given = view.ask("list", messages.ListOf(messages.LinksOfPart(view.view, part)), messages.ListAnswer)
    counts = {t: count for t, count in given.counts.items() if isinstance(t, tuple)}
    reference = {"view": view.view, "part": part}
    fetched = partial(_link_rows, view)
    return ListedLinks(counts, reference, view.digest, given.facts, fetched, view.serves)


def _link_rows(view: RemoteView, reference: Reference, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
    """Return links of a list by position."""
    links = messages.list_of_seeds(reference)
    assert isinstance(links, messages.LinksOfPart)
    found, count = (
        view.ask("links", messages.LinksOf(links, edge_type, numbers), messages.LinksAnswer),
        numbers.numel(),
    )
    facts = {name: getattr(found, name) for name in FACTS if getattr(found, name) is not None}
    with view.checking():
        if found.edges.shape != (2, count) or any(of.shape[:1] != (count,) for of in facts.values()):
            raise ValueError(
                f"the server sent links of shape {tuple(found.edges.shape)} instead of (2, {count})"
            )
    return SeedLinks(found.edges, numbers, found.edges, **facts, batch_relations=facts.get("relations"))


def remote_names(servers: RemoteView) -> Names:
    """Return the names in the graph on servers; requests are sent when they are read."""
    whole = replace(servers, view=())
    given, features = whole.description, RemoteFeatures(whole.description.schema.columns, whole)
    return Names(
        {t: RemoteIds(whole, t, kind) for t, kind in given.own_ids.items()},
        _RemoteLabels(whole),
        {t: _OriginalIds(features, t) for t in given.renumbered},
    )


@dataclass(frozen=True, eq=False)
class RemoteIds:
    """The users' ids of the nodes of one type, on servers (an IdsByNode)."""

    view: RemoteView
    node_type: NodeType
    kind: Kind

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of nodes. A request has up to 2^20 nodes, and fewer if their ids are long."""
        pieces, done, at_once = list[Keys](), 0, MOST_IDS
        while done < nodes.numel():
            found = self._some(nodes[done : done + at_once])
            pieces.append(found)
            done, at_once = done + len(found), max(len(found), 1)
        return joined_keys(pieces, self.kind)

    def _some(self, nodes: Tensor) -> Keys:
        found = self.view.ask(
            "node-ids", messages.NodeIdsOf(self.node_type, messages.some_nodes(nodes)), messages.NodeIdsAnswer
        ).keys
        with self.view.checking():
            if isinstance(found, messages.NumberIdsAnswer) != (self.kind == "int64"):
                raise ValueError(f"answer: is {type(found).__name__}, asked were ids of {self.kind}")
            keys = found.ids.numpy() if isinstance(found, messages.NumberIdsAnswer) else _text(found)
            if not 0 < len(keys) <= nodes.numel():
                raise ValueError(f"answer: has {len(keys)} ids for {nodes.numel()} nodes")
            return keys


@dataclass(frozen=True, eq=False)
class _OriginalIds:
    """Ids from before nodes were renumbered: rows of a column on the servers."""

    features: RemoteFeatures
    node_type: NodeType
    kind: Literal["int64"] = "int64"

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of nodes."""
        found = self.features.gather({self.node_type: Rows(nodes, (ORIGINAL_ID,))})
        return found[self.node_type][ORIGINAL_ID].numpy()


@dataclass(frozen=True, eq=False)
class _RemoteLabels(Mapping[NodeType, Mapping[str, Any]]):
    """Label records, each requested when it is read."""

    view: RemoteView

    def __getitem__(self, node_type: NodeType) -> Mapping[str, Any]:
        if node_type not in self:
            raise KeyError(node_type)
        found = self.view.ask("labels", messages.LabelsOf(node_type), messages.LabelsAnswer)
        names = {} if found.classes is None else {"classes": list(found.classes)}
        return names if found.unit is None else {**names, "unit": found.unit}

    def __contains__(self, node_type: object) -> bool:
        return node_type in self.view.description.labels

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self.view.description.labels)

    def __len__(self) -> int:
        return len(self.view.description.labels)


def _text(given: messages.TextIdsAnswer) -> StringKeys:
    """Return the strings of an answer; ValueError unless each is UTF-8 by itself."""
    offsets, content = given.offsets.numpy(), given.text.numpy()
    ends = [] if not len(offsets) else [int(offsets[0]), int(offsets[-1])]
    if ends != [0, len(content)] or (np.diff(offsets) < 0).any():
        raise ValueError(f"answer.offsets: do not rise from 0 to {len(content)}, the length of the text")
    str(content.data, "utf-8")  # UnicodeDecodeError is a ValueError
    begins = offsets[offsets < len(content)]
    if ((content[begins] & 0xC0) == 0x80).any():
        raise ValueError("answer.offsets: an id begins within a character")
    return StringKeys(offsets, content)


def read_description(text: bytes, where: str) -> messages.Description:
    """Read a server's description; WrongVersion if its version differs from this khop's."""
    given = parsed_json(text, f"graph of {where}")
    for name, here in (("wire", VERSION), ("randomness", RANDOMNESS)):
        found = given.get(name) if isinstance(given, dict) else None
        if found != here:
            raise WrongVersion(
                f"{where} has version {found} of {name}, but this khop has version {here}; "
                "install the same khop on clients and servers"
            )
    return messages.CODEC.read(messages.Description, given, (), f"graph of {where}")


@dataclass(frozen=True)
class _SentSettings:
    """Settings of batches, and the servers that have them."""

    settings: messages.SourceSettings
    servers: set[str] = field(default_factory=set)


_SENT = 16  # lists of seeds whose settings a source remembers


@dataclass(frozen=True)
class RemoteSource:
    """A batch source over servers: the batches of `local`, which has the sampler and columns, not edges."""

    view: RemoteView
    settings: messages.SourceSettings
    local: LocalSource
    beside: FeatureStore | None = None  # local columns, gathered for the nodes of a batch
    _sent: dict[messages.ListOfSeeds | None, _SentSettings] = field(default_factory=dict, compare=False)

    def prepare(self) -> None:
        """Do nothing: servers build the arrays that draws need at the first batch."""

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch, and wait for it."""
        return self._made(None, request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Request up to `prefetch` batches at a time; yield them in order. Closing cancels all requests."""
        stop = threading.Event()
        waiting = replace(in_flight, threads=in_flight.prefetch)  # threads only wait: servers do the work
        return ordered_map(partial(self._made, stop), requests, waiting, num_bytes, stop.set)

    @cached_property
    def _check(self) -> BatchCheck:
        schema, graph = self.local.sampler.graph.schema, self.local.sampler.graph
        return BatchCheck(schema, {t: graph.num_nodes(t) for t in schema.node_types}, self.settings.columns)

    def _made(self, stop: threading.Event | None, request: BatchRequest) -> Drawn:
        transfer = self.local.transfer
        with nullcontext() if transfer is None else pinned_results():
            seeds = request.seeds()
            answer = self._answer(request, seeds, stop)
            drawn = self._with_local_columns(answer.value)
            if seeds.listed is None:  # servers do not get labels or weights, and count listed seeds only
                drawn = replace(drawn, sample=seeds.added_to(drawn.sample))
            if self.local.transform is not None:
                drawn = self.local.transform.of_drawn(drawn, request)
            drawn = replace(drawn, traffic={**drawn.traffic, **self._traffic(answer)})
            if transfer is None:
                return drawn
            sent, arrival = transfer.send(drawn)
            return replace(sent, arrival=arrival)

    def _sent_for(self, request: BatchRequest, seeds: Seeds) -> _SentSettings:
        """Return the settings with the list that the numbers of the seeds refer to, and who has them.

        `loader(seeds)` may have another list than the loader.
        """
        reference = None if seeds.listed is None or request.order is None else request.order.seeds.reference
        listed = self.settings.seeds if reference is None else messages.list_of_seeds(reference)
        found = self._sent.get(listed)
        if found is None:
            if len(self._sent) >= _SENT:
                self._sent.clear()
            found = self._sent.setdefault(listed, _SentSettings(replace(self.settings, seeds=listed)))
        return found

    def _answer(self, request: BatchRequest, seeds: Seeds, stop: threading.Event | None) -> Answer[Drawn]:
        context = CallContext(messages.BATCH, request.epoch, request.step, stop, words=request.words)
        sent = self._sent_for(request, seeds)
        settings = sent.settings

        def receive(pieces: Iterator[Buffer]) -> Drawn:
            answer = self.view.read(pieces, messages.BATCH, messages.BatchAnswer)
            with self.view.checking():
                found = (answer.settings, answer.epoch, answer.step)
                if found != (settings.digest, request.epoch, request.step):
                    raise ValueError(f"answer: has settings, epoch and step {found}, asked was another batch")
                return self._check.checked(answer.batch, monotonic() - answer.seconds)

        def query(with_settings: bool) -> bytes:
            asked = messages.BatchOf.of(
                settings, seeds, request.key, request.epoch, request.step, with_settings=with_settings
            )
            return messages.request(messages.BATCH, self.view.fingerprint, asked)

        # Until all servers have answered, requests carry the settings: a retry may reach another server.
        exchange = self.view.exchange
        try:
            first = exchange.ask(context, query(len(sent.servers) < len(exchange.addresses)), receive)
        except UnknownSettings:
            sent.servers.clear()
            first = exchange.ask(context, query(True), receive)
        sent.servers.add(first.server)
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
    """Return the source of these batches: the graph's servers, or `local` for a local graph.

    `seeds` refers to a list on the servers; None: requests have the seeds. Columns that are not on the
    servers are gathered in this process.
    """
    servers = local.sampler.graph.servers
    return local if servers is None else remote_source(servers, local, seeds)


def remote_source(
    servers: object, local: LocalSource, seeds: Mapping[str, object] | None = None
) -> RemoteSource:
    """Return the batch source over the servers of a view."""
    assert isinstance(servers, RemoteView)
    features, choice = local.features, local.columns
    is_remote = features is not None and features.is_on_servers
    settings = messages.SourceSettings(
        servers.fingerprint,
        servers.view,
        described_sampler(local.sampler),
        choice if is_remote else ColumnChoice(),
        None if seeds is None else messages.list_of_seeds(seeds),
    )
    return RemoteSource(servers, settings, local, None if is_remote else features)


def described_sampler(sampler: Sampler) -> object:
    """Return plain values from which a server makes the sampler; Unsupported if it cannot."""
    return instance(sampler.__class__, sampler.settings())
