"""A graph in parts as a server of one part serves it: whole batches, and its part for other servers.

Answers of the server of a part to the servers of other parts.

Views of a graph in parts: fewer edge types, edges before a time, parts of splits of links.

Nodes of a graph in parts that exist before a time, by the edges of all parts.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from khop.graph.rule_arrays import check_edge_type
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
from khop.servers.codec import Frame, Outgoing
from khop.servers.errors import WrongGraph
from khop.servers.messages import (
    CODEC,
    PART_REQUESTS,
    CandidatesBefore,
    CountsAnswer,
    DegreesOf,
    EdgesAnswer,
    EdgesBefore,
    EdgesOf,
    HopOf,
    LinkCountsOf,
    LinkRowsAnswer,
    LinkRowsOf,
    MarksAnswer,
    NegativesOf,
    OctetsAnswer,
    Only,
    PartRowsOf,
    SplitArguments,
    SplitCountsOf,
    SplitPart,
    Step,
    TouchedOf,
    View,
    read_nodes,
)
from khop.servers.parts.exchange import PartExchange, read_hop, read_negatives
from khop.servers.parts.features import SharedFeatures
from khop.servers.parts.graph import SharedGraph, SharedSplit, counted, edges_between, shared_links
from khop.servers.registry import Registry
from khop.servers.views import KeptViews, Viewed, default_view_bytes


def existing(graph: SharedGraph, edges: ColumnEdges, limit: int) -> Mapping[NodeType, Tensor]:
    """Mark the nodes that exist before a time, bool (nodes), for the types where times say so.

    `edges` are those of this part. Every other server is asked once.
    """
    types = {end for t in graph.schema.edge_types for end in (t[0], t[2])}

    def read(part: int, answer: MarksAnswer) -> Mapping[NodeType, Tensor]:
        for node_type, marks in answer.marks.items():
            if node_type not in types or marks.numel() != graph.num_nodes(node_type):
                raise ValueError(f"marks of {node_type!r}: are {marks.numel()}, one per node is asked")
        return answer.marks

    exchange = graph.exchange
    touched, found = exchange.ask(
        "nodes with edges",
        dict.fromkeys(exchange.others, TouchedOf(graph.view, limit)),
        MarksAnswer,
        read,
        lambda: nodes_with_edges_before(edges, limit),
    )
    for of_part in found.values():
        for node_type, marks in of_part.items():
            touched[node_type] |= marks
    return nodes_before(edges, limit, touched)


class PartViews:
    """The views of a server's part, each made once and kept while there is room. Threads may share it."""

    def __init__(self, graph: SharedGraph, features: FeatureStore, most_bytes: int) -> None:
        self.kept = KeptViews((graph, features), most_bytes)
        self._graph, self._features = graph, features
        self._whole = Viewed(graph, features)

    def viewed(self, view: View) -> Viewed:
        """Return the graph after the steps of a view, with the links of its last split."""
        if not view:
            return self._whole
        return self.kept.of(
            ("viewed", view), lambda: Viewed(self.graph(view), self._features, self.links(view))
        )

    def graph(self, view: View) -> SharedGraph:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        if not view:
            return self._graph
        return self.kept.of(("graph", view), lambda: self._after(view[:-1], view[-1]))

    def split(self, view: View, arguments: SplitArguments) -> SharedSplit:
        """Return a split of the links of a view. It needs no other server until its parts are asked for."""

        def make() -> SharedSplit:
            graph = self.graph(view)
            arguments.check(graph.schema)
            return SharedSplit(graph, arguments)

        return self.kept.of(("split", view, arguments), make)

    def links(self, view: View) -> Mapping[str, LinkList]:
        """Return the lists of links of the last split of a view, by part of the split."""
        last = view[-1] if view else None
        if not isinstance(last, SplitPart):
            return {}
        before, split = view[:-1], self.split(view[:-1], last.split)
        split.check()

        def of_part(name: str) -> LinkList:
            limit = split.part(name).limit
            drawn = split.graph if limit is None else self.graph((*before, CandidatesBefore(limit)))
            return shared_links(split, name, drawn)

        return {
            name: self.kept.of(("links", before, split.arguments, name), partial(of_part, name))
            for name in PARTS
        }

    def _after(self, view: View, step: Step) -> SharedGraph:
        graph = self.graph(view)
        edges = HeldEdges(graph.held)
        match step:
            case Only():
                return graph.only(step.edge_types)
            case EdgesBefore():
                kept = graph.held.keeping(positions_before(edges, step.limit))
                return graph.after(step, kept, existing(graph, edges, step.limit))
            case CandidatesBefore():
                return graph.after(step, graph.held, existing(graph, edges, step.limit))
            case SplitPart():
                part = self.split(view, step.split).part(step.part)
                exist = {} if part.limit is None else existing(graph, edges, part.limit)
                return graph.after(step, graph.held.keeping(part.kept), exist)


class PartAnswers:
    """Hops, rows, negatives and links of one part, for the servers of other parts. Threads may share it.

    An answer is a function of the part and the request. Hops and rows need no other server; negatives need
    the edges of other parts, once, and links the bounds of their split.
    """

    def __init__(
        self, graph: SharedGraph, features: SharedFeatures, views: PartViews, registry: Registry
    ) -> None:
        self.part = graph.exchange.part
        self._graph, self._views, self._registry = graph, views, registry
        self._rows, self._cache = features.answers(), features.cache

    def counters(self) -> Mapping[str, int]:
        """Return the counts of the cache of rows of other parts."""
        return self._cache.counters()

    def answered(self, kind: str, frame: Frame) -> Outgoing:
        """Return the answer to a request of a kind; ValueError if it does not fit the part."""
        asked = frame.whole("part")
        if asked != self.part:
            raise WrongGraph(
                f"the request is for part {asked}, and this server has part {self.part}; correct owners.toml"
            )
        number = frame.whole("request")
        return Outgoing(CODEC, self._answer(frame.body(CODEC, PART_REQUESTS[kind])), {"request": number})

    def _answer(self, asked: object) -> object:
        match asked:
            case HopOf():
                return self._hop(asked)
            case PartRowsOf():
                return OctetsAnswer(self._rows.answer(asked.rows))
            case NegativesOf():
                return self._negatives(asked)
            case DegreesOf():
                held = self._views.graph(asked.view).held
                check_edge_type(asked.edge_type, held.schema)
                end = held.bounds[asked.edge_type[2]][-1]
                nodes = read_nodes(asked.nodes, end, end)
                return CountsAnswer(held.in_degrees(asked.edge_type, nodes))
            case EdgesOf():
                held = self._views.graph(asked.view).held
                check_edge_type(asked.edge_type, held.schema)
                span = (asked.first, asked.end)
                return EdgesAnswer(*edges_between(held, asked.edge_type, span, asked.begin))
            case TouchedOf():
                edges = HeldEdges(self._views.graph(asked.view).held)
                return MarksAnswer(nodes_with_edges_before(edges, asked.limit))
            case SplitCountsOf():
                return CountsAnswer(self._views.split(asked.view, asked.split).counts(counted(asked)))
            case LinkCountsOf():
                split = self._views.split(asked.view, asked.split)
                return CountsAnswer(split.link_counts(asked.part, asked.edge_type))
            case LinkRowsOf():
                split = self._views.split(asked.view, asked.split)
                found = split.link_rows(asked.part, asked.edge_type, asked.rows)
                return LinkRowsAnswer({name: fact.contiguous() for name, fact in found.items()})
        raise AssertionError(f"{asked} is no request of a server")

    def _hop(self, given: HopOf) -> OctetsAnswer:
        graph = self._views.graph(given.view)
        asked = read_hop(given, self._registry, graph.schema, graph.nodes.counts, graph.num_all_edges)
        frontier = asked.wire.frontier(given.frontier, graph.spans(self.part))
        drawn = graph.held.sample_hop(frontier, asked.hop, asked.key)
        message = torch.empty(asked.wire.size_of(drawn), dtype=torch.uint8)
        asked.wire.write(drawn, message)
        return OctetsAnswer(message)

    def _negatives(self, given: NegativesOf) -> OctetsAnswer:
        graph = self._views.graph(given.view)
        asked = read_negatives(given, self._registry, graph.schema, graph.nodes.counts)
        span = graph.spans(self.part)[asked.edge_type[0]]
        positives = asked.wire.positives(given.links, span)
        drawn = graph.negatives.tables.drawn(asked.edge_type, asked.negatives, positives, asked.key)
        return OctetsAnswer(asked.wire.answer(drawn, positives.sources.numel()))


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
        return self.part_views.viewed(())

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

    def viewed(self, view: View) -> Viewed:
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
