"""A graph in parts as a server of one part serves it: whole batches, and its part for other servers.

Answers of the server of a part to the servers of other parts.

Views of a graph in parts: fewer edge types, edges before a time, parts of splits of links.

Nodes of a graph in parts that exist before a time, by the edges of all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from khop.distributed.link_split import HeldEdges
from khop.graph.features.store import FeatureStore
from khop.graph.folder import TimeCutOffs, recorded_cut_offs
from khop.graph.layout import node_column
from khop.graph.node_ids import label_records, stored_ids
from khop.graph.partitions.local_partitions import LocalPartitions
from khop.graph.partitions.parts_folder import PartsFolder
from khop.kernels.id_table import Keys
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.link_split import (
    PARTS,
    TIME,
    ColumnEdges,
    nodes_before,
    nodes_with_edges_before,
    positions_before,
)
from khop.schema import NodeType
from khop.servers.description import (
    Answered,
    KeptViews,
    SplitArguments,
    Viewed,
    default_view_bytes,
    edge_type_of,
    time_of,
)
from khop.servers.errors import WrongGraph
from khop.servers.frame import Document, Frame, Plain, Tensors, by_type, read_nodes, written
from khop.servers.parts.exchange import (
    COUNTS,
    DEGREES,
    EDGES,
    HOP,
    LINK_COUNTS,
    LINK_ROWS,
    NEGATIVES,
    ROWS,
    TOUCHED,
    PartExchange,
    Query,
    read_hop,
    read_negatives,
)
from khop.servers.parts.features import SharedFeatures
from khop.servers.parts.graph import (
    SharedGraph,
    SharedSplit,
    bytes_of,
    counts_answer,
    edges_between,
    shared_links,
)
from khop.servers.request_wire import Registry


def existing(graph: SharedGraph, edges: ColumnEdges, limit: int) -> Mapping[NodeType, Tensor]:
    """Mark the nodes that exist before a time, bool (nodes), for the types where times say so.

    `edges` are those of this part. Every other server is asked once.
    """
    types = {end for t in graph.schema.edge_types for end in (t[0], t[2])}

    def read(part: int, frame: Frame) -> dict[NodeType, Tensor]:
        found = {t: frame.tensor(number) for t, number in frame.document["marks"].entries()}
        for node_type, marks in found.items():
            if node_type not in types or marks.dtype != torch.bool:
                raise ValueError(f"marks of {node_type!r}: are {marks.dtype} {tuple(marks.shape)}")
            if marks.shape != (graph.num_nodes(str(node_type)),):
                raise ValueError(f"marks of {node_type!r}: are {tuple(marks.shape)}, one per node is asked")
        return {str(t): marks for t, marks in found.items()}

    exchange, fields = graph.exchange, {"view": list(graph.view), "limit": limit}
    touched, found = exchange.ask(
        TOUCHED,
        dict.fromkeys(exchange.others, Query(fields)),
        read,
        lambda: nodes_with_edges_before(edges, limit),
    )
    for of_part in found.values():
        for node_type, marks in of_part.items():
            touched[node_type] |= marks
    return nodes_before(edges, limit, touched)


def touched_answer(edges: ColumnEdges, limit: int) -> Answered:
    """Return the answer to a request of `existing`."""
    tensors = Tensors()
    marks: Mapping[NodeType, Plain] = {
        t: tensors(of_type) for t, of_type in nodes_with_edges_before(edges, limit).items()
    }
    return {"marks": by_type(marks)}, tensors


class PartViews:
    """The views of a server's part, each made once and kept while there is room. Threads may share it.

    Steps of a view are `only` (edge types), `edges_before` (a time), `candidates_before` (a time: all edges,
    negatives among the nodes that exist before it) and `split_links` with a `part`.
    """

    def __init__(self, graph: SharedGraph, features: FeatureStore, most_bytes: int) -> None:
        self.kept = KeptViews((graph, features), most_bytes)
        self._graph, self._features = graph, features
        self._whole = Viewed(graph, features)

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view, with the links of its last split."""
        if not view.each():
            return self._whole
        return self.kept.of(
            ("viewed", written(view.value)),
            lambda: Viewed(self.graph(view), self._features, self.links(view)),
        )

    def graph(self, view: Document) -> SharedGraph:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        steps = view.each()
        if not steps:
            return self._graph
        return self.kept.of(("graph", written(view.value)), lambda: self._after(_before(view), steps[-1]))

    def split(self, view: Document, arguments: Document) -> SharedSplit:
        """Return a split of the links of a view. It needs no other server until its parts are asked for."""

        def make() -> SharedSplit:
            graph = self.graph(view)
            return SharedSplit(graph, SplitArguments.read(arguments, graph.schema))

        return self.kept.of(("split", written([view.value, arguments.value])), make)

    def links(self, view: Document) -> Mapping[str, LinkList]:
        """Return the lists of links of the last split of a view, by part of the split."""
        steps = view.each()
        if not steps or steps[-1].given("split_links") is None:
            return {}
        before, arguments = _before(view), steps[-1]["split_links"]
        split = self.split(before, arguments)
        split.check()
        key = written([before.value, arguments.value])

        def of_part(name: str) -> LinkList:
            limit = split.part(name).limit
            drawn = split.graph if limit is None else self.graph(_with(before, {"candidates_before": limit}))
            return shared_links(split, name, drawn)

        return {name: self.kept.of(("links", key, name), partial(of_part, name)) for name in PARTS}

    def _after(self, view: Document, step: Document) -> SharedGraph:
        graph = self.graph(view)
        if step.given("only") is not None:
            return graph.only([edge_type_of(each.type_(), graph.schema) for each in step["only"].each()])
        edges = HeldEdges(graph.held)
        if step.given("edges_before") is not None:
            limit = time_of(step["edges_before"])
            kept = graph.held.keeping(positions_before(edges, limit))
            return graph.after(step.value, kept, existing(graph, edges, limit))
        if step.given("candidates_before") is not None:
            limit = time_of(step["candidates_before"])
            return graph.after(step.value, graph.held, existing(graph, edges, limit))
        part = self.split(view, step["split_links"]).part(step["part"].text())
        exist = {} if part.limit is None else existing(graph, edges, part.limit)
        return graph.after(step.value, graph.held.keeping(part.kept), exist)


def _before(view: Document) -> Document:
    return Document([step.value for step in view.each()[:-1]], view.where)


def _with(view: Document, step: Mapping[str, object]) -> Document:
    return Document([*(each.value for each in view.each()), dict(step)], view.where)


class PartAnswers:
    """Hops, rows, negatives and links of one part (an AnswersServers).

    An answer is a function of the part and the request. Hops and rows need no other server; negatives need
    the edges of other parts, once, and links the bounds of their split.
    """

    def __init__(
        self, graph: SharedGraph, features: SharedFeatures, views: PartViews, registry: Registry
    ) -> None:
        self.part = graph.exchange.part
        self._graph, self._views, self._registry = graph, views, registry
        rows, self._cache = features.answers(), features.cache
        self._answers: Mapping[str, Callable[[Frame], Answered]] = {
            HOP: self._hop,
            ROWS: lambda frame: _one("rows", rows.answer(bytes_of(frame, "rows"))),
            NEGATIVES: self._negatives,
            **{kind: partial(answer, views) for kind, answer in _OF_VIEWS.items()},
        }

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of requests."""
        return frozenset(self._answers)

    def counters(self) -> Mapping[str, int]:
        """Return the counts of the cache of rows of other parts."""
        return self._cache.counters()

    def answered(self, kind: str, frame: Frame) -> Answered:
        """Return the answer to a request; ValueError if it does not fit the part."""
        asked = frame.document["part"].whole()
        if asked != self.part:
            raise WrongGraph(
                f"the request is for part {asked}, and this server has part {self.part}; correct owners.toml"
            )
        number = frame.document["request"].whole()
        fields, tensors = self._answers[kind](frame)
        return {**fields, "request": number}, tensors

    def _hop(self, frame: Frame) -> Answered:
        graph = self._views.graph(frame.document["view"])
        asked = read_hop(
            frame.document, self._registry, graph.schema, graph.nodes.counts, graph.num_all_edges
        )
        frontier = asked.wire.frontier(bytes_of(frame, "frontier"), graph.spans(self.part))
        drawn = graph.held.sample_hop(frontier, asked.hop, asked.key)
        message = torch.empty(asked.wire.size_of(drawn), dtype=torch.uint8)
        asked.wire.write(drawn, message)
        return _one("drawn", message)

    def _negatives(self, frame: Frame) -> Answered:
        graph = self._views.graph(frame.document["view"])
        asked = read_negatives(frame.document, self._registry, graph.schema, graph.nodes.counts)
        span = graph.spans(self.part)[asked.edge_type[0]]
        positives = asked.wire.positives(bytes_of(frame, "links"), span)
        drawn = graph.negatives.tables.drawn(asked.edge_type, asked.negatives, positives, asked.key)
        return _one("drawn", asked.wire.answer(drawn, positives.sources.numel()))


def _degrees(views: PartViews, frame: Frame) -> Answered:
    held = views.graph(frame.document["view"]).held
    edge_type = edge_type_of(frame.document["type"].type_(), held.schema)
    first, *_, end = held.bounds[edge_type[2]]
    return _one("counts", held.in_degrees(edge_type, read_nodes(frame, end - first)))


def _edges(views: PartViews, frame: Frame) -> Answered:
    given = frame.document
    held = views.graph(given["view"]).held
    edge_type = edge_type_of(given["type"].type_(), held.schema)
    span = [end.whole() for end in given["span"].each()]
    if len(span) != 2:
        raise ValueError(f"{given.where}.span: is {span}, not a first and a last node")
    count, edges = edges_between(held, edge_type, span, given["begin"].whole())
    fields, tensors = _one("edges", edges)
    return {**fields, "count": count}, tensors


def _touched(views: PartViews, frame: Frame) -> Answered:
    graph = views.graph(frame.document["view"])
    return touched_answer(HeldEdges(graph.held), time_of(frame.document["limit"]))


def _counts(views: PartViews, frame: Frame) -> Answered:
    given = frame.document
    split = views.split(given["view"], given["split"])
    return counts_answer(split, given, edge_type_of(given["type"].type_(), split.graph.schema))


def _link_counts(views: PartViews, frame: Frame) -> Answered:
    given = frame.document
    split = views.split(given["view"], given["split"])
    edge_type = edge_type_of(given["type"].type_(), split.graph.schema)
    return _one("counts", split.link_counts(given["part_of_split"].text(), edge_type))


def _link_rows(views: PartViews, frame: Frame) -> Answered:
    given = frame.document
    split = views.split(given["view"], given["split"])
    edge_type = edge_type_of(given["type"].type_(), split.graph.schema)
    rows = frame.tensor(given["rows"])
    found, tensors = split.link_rows(given["part_of_split"].text(), edge_type, rows), Tensors()
    return {name: tensors(fact.contiguous()) for name, fact in found.items()}, tensors


def _one(name: str, tensor: Tensor) -> Answered:
    tensors = Tensors()
    fields: dict[str, Plain] = {name: tensors(tensor)}
    return fields, tensors


_OF_VIEWS: Mapping[str, Callable[[PartViews, Frame], Answered]] = {
    DEGREES: _degrees,
    EDGES: _edges,
    TOUCHED: _touched,
    COUNTS: _counts,
    LINK_COUNTS: _link_counts,
    LINK_ROWS: _link_rows,
}


_NO_STEPS = Document([], "view")


@dataclass(frozen=True, eq=False)
class ServedPart:
    """A graph of which one part is here (a Served). Its fingerprint is that of the whole graph."""

    folder: PartsFolder
    graph: SharedGraph
    features: SharedFeatures
    part_views: PartViews
    cut_offs: TimeCutOffs | None

    @classmethod
    def of(
        cls,
        folder: PartsFolder,
        exchange: PartExchange,
        cache_bytes: int = 0,
        view_bytes: int | None = None,
    ) -> ServedPart:
        """Return the graph of a folder with one open part; the owners of the others are asked for theirs.

        Rows of other parts are kept in `cache_bytes` of memory. Views take up to `view_bytes`, by default a
        quarter of what the process may use. ValueError if the graph is split by time, and times of nodes are
        not on this machine.
        """
        cut_offs = recorded_cut_offs(folder)
        if cut_offs is not None:
            _check_times(folder)
        graph = SharedGraph(LocalPartitions.of(folder), exchange)
        features = SharedFeatures.of(folder, exchange, cache_bytes)
        most = default_view_bytes() if view_bytes is None else view_bytes
        return cls(folder, graph, features, PartViews(graph, features, most), cut_offs)

    def answers(self, registry: Registry) -> PartAnswers:
        """Return the answers to other servers."""
        return PartAnswers(self.graph, self.features, self.part_views, registry)

    @property
    def name(self) -> str:
        """Name of the graph: that of its folder."""
        return self.folder.path.name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the whole graph."""
        return self.folder.fingerprint

    @property
    def whole(self) -> Viewed:
        """The whole graph."""
        return self.part_views.viewed(_NO_STEPS)

    @property
    def views(self) -> KeptViews:
        """The views that are kept, with their memory."""
        return self.part_views.kept

    @property
    def splits(self) -> Mapping[str, Mapping[NodeType, Tensor]]:
        """Node ids of each split by type."""
        return {name: self.folder.split(name) for name in self.folder.split_names}

    @cached_property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids of the nodes of all parts, mapped: every machine has them."""
        return stored_ids(self.folder)

    @cached_property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Records of labels in the graph's import, by node type."""
        return label_records(self.folder)

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        return self.part_views.viewed(view)


def _check_times(folder: PartsFolder) -> None:
    """Raise ValueError unless this machine has the times of the nodes of all parts."""
    for node_type in folder.schema.node_types:
        has_times = TIME in folder.schema.columns.get(node_type, {})
        if has_times and node_column(node_type, TIME) not in folder.book.wholes:
            raise ValueError(
                f"{folder.path}: is split by time, and each part has the column {TIME!r} of its own "
                f"{node_type!r} nodes alone; serve the graph whole, or give the column one number per node, "
                "and partition again"
            )
