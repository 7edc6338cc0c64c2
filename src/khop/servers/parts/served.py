"""One part of a graph on a server: whole batches for clients, rows and hops for other servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from khop.distributed.link_split import HeldEdges, HeldLinks, LinkCounts, nodes_existing, owned_links
from khop.distributed.owners import OwnerQuestion, counts_of_all_nodes
from khop.distributed.partitioned_features import PartitionedFeatures, RecentRows
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.draw import DrawnNegatives, Frontier, Positives, check_drawn
from khop.graph.features.store import FeatureStore
from khop.graph.folder import TimeCutOffs, recorded_cut_offs
from khop.graph.layout import node_column
from khop.graph.node_ids import label_records, stored_ids
from khop.graph.partitions.local_partitions import (
    LocalPartitionFeatures,
    LocalPartitions,
    refuse_relations,
)
from khop.graph.partitions.parts_folder import PartsFolder
from khop.graph.rule import Hop, Rule, check_rule
from khop.graph.rule_arrays import check_edge_type
from khop.kernels.id_table import Keys
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.link_split import (
    PARTS,
    TIME,
    CountedLinks,
    EdgeSplit,
    Part,
    Shares,
    check_parts,
    link_numbers,
    nodes_with_edges_before,
    positions_before,
    split_by_column,
    split_by_time,
    split_edges,
)
from khop.schema import EdgeType, NodeType, Specs, Type
from khop.servers import messages
from khop.servers.codec import Frame, Outgoing
from khop.servers.errors import WrongGraph
from khop.servers.parts.exchange import PartExchange, PartOwners
from khop.servers.registry import Registry
from khop.servers.views import KeptValues, KeptViews, Viewed, default_view_bytes

_NOTHING = torch.empty(0, dtype=torch.int64)
_NUMBERS = 2  # cached arrays of random numbers, each with 8 bytes per link of a type


class SharedSplit:
    """A link split of a partitioned graph. Threads may share it.

    A split by time or by a column needs only the edges of this part, and so do link counts by random number.
    The other values of a random split need the bounds of its parts, which are requested from the other
    servers once.
    """

    def __init__(self, graph: PartitionedGraph, arguments: messages.SplitArguments) -> None:
        self.graph, self.arguments = graph, arguments
        self._edges = HeldEdges(graph.held, graph.owners, arguments)
        self._numbers: KeptValues[Tensor] = KeptValues(_NUMBERS)
        self._made: KeptValues[EdgeSplit] = KeptValues(1)
        self._links: KeptValues[HeldLinks] = KeptValues(len(PARTS))

    def counts(self, counted: CountedLinks) -> Tensor:
        """Return the link counts of this part."""
        edge_type, key = counted.edge_type, self.arguments.key
        numbers = self._numbers.of(edge_type, lambda: link_numbers(self._edges, edge_type, key))
        return counted.counts(numbers)

    def part(self, name: str) -> Part:
        """Return a part of the split, for the local edges; ValueError if there is none of this name."""
        if name not in PARTS:
            raise ValueError(f"part {name!r} of a split of links: must be one of {list(PARTS)}")
        made = self._made.of("split", self._split)
        return {"train": made.train, "val": made.val, "test": made.test}[name]

    def links(self, name: str) -> HeldLinks:
        """Return the links with local destinations in a part of the split."""
        part, facts = self.part(name), self.arguments.columns
        facts = facts if PARTS.index(name) else facts.of_training
        return self._links.of(name, lambda: HeldLinks(self.graph, part.links, facts))

    def check(self) -> None:
        """Raise ValueError if a part of a split by time or by a column has no links.

        Also raises it for negatives by relation.
        """
        columns = self.arguments.columns
        if columns.relation is not None and columns.negatives:
            refuse_relations(self.arguments.edge_types[0], columns.relation)
        if not isinstance(self.arguments.method, Shares):
            for edge_type in self.arguments.edge_types:
                check_parts(edge_type, {name: self._total(name, edge_type) for name in PARTS})

    def _total(self, name: str, edge_type: EdgeType) -> int:
        offsets = self.graph.held.folder.book.offsets[edge_type[2]]
        subject = LinkCounts(edge_type, messages.SplitPart(self.arguments, name))
        own = self.links(name).counts(edge_type)
        return int(counts_of_all_nodes(self.graph.owners, offsets, own, subject).sum())

    def _split(self) -> EdgeSplit:
        arguments = self.arguments
        match arguments.method:
            case Shares():
                return split_edges(self._edges, arguments.edge_types, arguments.method, arguments.key)
            case TimeCutOffs():
                return split_by_time(self._edges, arguments.edge_types, arguments.method)
        return split_by_column(self._edges, arguments.edge_types)


class PartViews:
    """The views of a server's part, cached within a memory budget. Threads may share it."""

    def __init__(self, graph: PartitionedGraph, features: FeatureStore, most_bytes: int) -> None:
        self.kept = KeptViews((graph, features), most_bytes)
        self._graph, self._features = graph, features
        self._whole = Viewed(graph, features)

    def viewed(self, view: messages.View) -> Viewed:
        """Return the graph of a view, with the links of its last split."""
        if not view:
            return self._whole
        return self.kept.of(
            ("viewed", view), lambda: Viewed(self.graph(view), self._features, self.links(view))
        )

    def graph(self, view: messages.View) -> PartitionedGraph:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        if not view:
            return self._graph
        return self.kept.of(("graph", view), lambda: self._after(view[:-1], view[-1]))

    def split(self, view: messages.View, arguments: messages.SplitArguments) -> SharedSplit:
        """Return a link split of a view. Other servers are queried only when its parts are requested."""

        def make() -> SharedSplit:
            graph = self.graph(view)
            arguments.check(graph.schema)
            return SharedSplit(graph, arguments)

        return self.kept.of(("split", view, arguments), make)

    def links(self, view: messages.View) -> Mapping[str, LinkList]:
        """Return the link lists of a view's last split, by part of the split."""
        last = view[-1] if view else None
        if not isinstance(last, messages.SplitPart):
            return {}
        split = self.split(view[:-1], last.split)
        split.check()
        return {name: self._list(view[:-1], split, name) for name in PARTS}

    def held_links(self, view: messages.View) -> HeldLinks:
        """Return this server's links of the split part that a view ends with."""
        last = view[-1] if view else None
        if not isinstance(last, messages.SplitPart):
            raise ValueError(f"links: {last} is not a part of a split")
        return self.split(view[:-1], last.split).links(last.part)

    def _list(self, before: messages.View, split: SharedSplit, name: str) -> LinkList:
        def make() -> LinkList:
            limit, arguments = split.part(name).limit, split.arguments
            drawn = split.graph if limit is None else self.graph((*before, messages.CandidatesBefore(limit)))
            key = arguments.key.plus(PARTS.index(name))
            return owned_links(split.links(name), drawn, key, messages.SplitPart(arguments, name))

        return self.kept.of(("links", before, split.arguments, name), make)

    def _after(self, view: messages.View, step: messages.Step) -> PartitionedGraph:
        graph = self.graph(view)
        match step:
            case messages.Only():
                return graph.only(step.edge_types)
            case messages.EdgesBefore():
                kept = positions_before(HeldEdges(graph.held), step.limit)
                return graph.keeping(kept, nodes_existing(graph, step.limit), step)
            case messages.CandidatesBefore():
                return graph.keeping({}, nodes_existing(graph, step.limit), step)
            case messages.SplitPart():
                part = self.split(view, step.split).part(step.part)
                exist = {} if part.limit is None else nodes_existing(graph, part.limit)
                return graph.keeping(part.kept, exist, step)


class PartAnswers:
    """Answers to other servers: hops, rows, negatives and links of one part. Threads may share it.

    An answer is a function of the part and the request. Hops and rows do not need other servers. Negatives
    need the edges of other parts, once, and links need the bounds of their split.
    """

    def __init__(
        self, graph: PartitionedGraph, features: PartitionedFeatures, views: PartViews, registry: Registry
    ) -> None:
        self.part = graph.owners.own
        self._graph, self._features, self._views, self._registry = graph, features, views, registry

    def counters(self) -> Mapping[str, int]:
        """Return the counters of the remote row cache."""
        return {} if self._features.recent is None else self._features.recent.counters()

    def answered(self, kind: str, frame: Frame) -> Outgoing:
        """Return the answer to a request; ValueError if it does not fit the part."""
        asked = frame.whole("part")
        if asked != self.part:
            raise WrongGraph(
                f"the request is for part {asked}, but this server has part {self.part}; correct owners.toml"
            )
        number = frame.whole("request")
        return Outgoing(
            messages.CODEC,
            self._answer(frame.body(messages.CODEC, messages.PART_REQUESTS[kind])),
            {"request": number},
        )

    def _answer(self, asked: object) -> messages.OctetsAnswer | messages.PartAnswer:
        views = self._views
        match asked:
            case messages.HopOf():
                return _answered(self._hop(asked), asked.frontier)
            case messages.NegativesOf():
                return _answered(self._negatives(asked), asked.links)
            case messages.PartRowsOf():
                of = views.held_links(asked.links) if asked.links else self._features
                return _answered(of.question, asked.rows)
            case messages.NodeDegreesOf():
                return _answered(views.graph(asked.view).degree_question(asked.edge_type), asked.nodes)
            case messages.PartDegreesOf():
                held = views.graph(asked.view).held
                return messages.PartAnswer(
                    torch.cat([csc.degrees() for csc, _ in held.rows(asked.edge_type)])
                )
            case messages.EdgesOf():
                graph = views.graph(asked.view)
                check_edge_type(asked.edge_type, graph.schema)
                if asked.sources >= graph.owners.count:
                    raise ValueError(f"sources: there is no part {asked.sources}")
                return messages.PartAnswer(
                    graph.negatives.edges.page(asked.edge_type, asked.begin, asked.sources)
                )
            case messages.TouchedOf():
                marks = nodes_with_edges_before(HeldEdges(views.graph(asked.view).held), asked.limit)
                return messages.PartAnswer(torch.cat([torch.empty(0, dtype=torch.bool), *marks.values()]))
            case messages.SplitCountsOf():
                if asked.shift % 16:
                    raise ValueError(f"shift: is {asked.shift}, and must be a multiple of 16")
                counted = CountedLinks(asked.edge_type, asked.shift, asked.prefix, asked.above)
                return messages.PartAnswer(views.split(asked.view, asked.split).counts(counted))
            case messages.LinkCountsOf():
                return messages.PartAnswer(views.held_links(asked.links).counts(asked.edge_type))
        raise AssertionError(f"{asked} is not a request that servers answer")

    def _hop(self, given: messages.HopOf) -> OwnerQuestion:
        """Read a hop; ValueError names the invalid value."""
        graph = self._views.graph(given.view)
        for edge_type in given.fanouts:
            check_edge_type(edge_type, graph.schema)
        rule: Rule = self._registry.made(given.rule)
        check_rule(rule, graph.schema)
        hop, frontier = Hop(given.number, given.fanouts, rule, given.edge_ids), {}
        for node_type, sent in given.sent.items():
            if node_type not in graph.schema.node_types:
                raise ValueError(
                    f"sent: {node_type!r} is not a node type; there are {graph.schema.node_types}"
                )
            if not set(sent) <= rule.frontier_fields:
                raise ValueError(f"sent: {sent} are not among those that {rule} reads")
            frontier[node_type] = Frontier(_NOTHING, **dict.fromkeys(sent, _NOTHING))
        return graph.question(frontier, hop, given.key)

    def _negatives(self, given: messages.NegativesOf) -> OwnerQuestion:
        """Read a draw of negatives; ValueError names the invalid value."""
        graph = self._views.graph(given.view)
        check_edge_type(given.edge_type, graph.schema)
        negatives: DrawnNegatives = self._registry.made(given.negatives)
        check_drawn(negatives)
        positives = Positives(_NOTHING, _NOTHING, _NOTHING if given.until else None, given.time_column)
        return graph.negatives.question(given.edge_type, negatives, positives, given.key)


def _answered(question: OwnerQuestion, content: Tensor) -> messages.OctetsAnswer:
    """Return the answer to the query of another server."""
    (work,) = question.worked([question.asked(content)])
    message = torch.empty(question.size_of(work), dtype=torch.uint8)
    question.write(work, message)
    return messages.OctetsAnswer(message)


def features_of(folder: PartsFolder, owners: PartOwners, cache_bytes: int = 0) -> PartitionedFeatures:
    """Return the columns of a graph with one local part.

    Rows of other parts are cached in `cache_bytes` of memory.
    """
    schema, book = folder.schema, folder.book
    types: list[Type] = [*schema.node_types, *schema.edge_types]
    offsets = {t: book.offsets[t] if isinstance(t, str) else book.first_edges(t) for t in types}
    specs: Specs = {t: schema.columns.get(t, {}) for t in types}
    recent = RecentRows(cache_bytes, specs, {t: ends[-1] for t, ends in offsets.items()})
    return PartitionedFeatures(LocalPartitionFeatures(folder).pieces, specs, offsets, owners, recent=recent)


@dataclass(frozen=True, eq=False)
class ServedPart:
    """A graph with one local part (a Served). Its fingerprint is that of the whole graph."""

    folder: PartsFolder
    graph: PartitionedGraph
    features: PartitionedFeatures
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
        """Return the graph of a folder with one local part; other parts are requested from their owners.

        Rows of other parts are cached in `cache_bytes` of memory. Views take up to `view_bytes`, by default a
        quarter of what the process may use. ValueError if the graph is split by time and this machine lacks
        the times of nodes.
        """
        cut_offs = recorded_cut_offs(folder)
        if cut_offs is not None:
            _check_times(folder)
        owners = PartOwners(exchange)
        graph = PartitionedGraph(LocalPartitions.of(folder), owners)
        features = features_of(folder, owners, cache_bytes)
        most = default_view_bytes() if view_bytes is None else view_bytes
        return cls(folder, graph, features, PartViews(graph, features, most), cut_offs)

    def answers(self, registry: Registry) -> PartAnswers:
        """Return the answers to other servers."""
        return PartAnswers(self.graph, self.features, self.part_views, registry)

    @property
    def name(self) -> str:
        """Name of the graph: its folder's name."""
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
        """The cached views, with their memory."""
        return self.part_views.kept

    @property
    def splits(self) -> Mapping[str, Mapping[NodeType, Tensor]]:
        """Node ids of each split by type."""
        return {name: self.folder.split(name) for name in self.folder.split_names}

    @cached_property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids of the nodes of all parts, memory-mapped: every machine has them."""
        return stored_ids(self.folder)

    @cached_property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Label records of the graph's import, by node type."""
        return label_records(self.folder)

    def viewed(self, view: messages.View) -> Viewed:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        return self.part_views.viewed(view)


def _check_times(folder: PartsFolder) -> None:
    """Raise ValueError unless this machine has the times of the nodes of all parts."""
    for node_type in folder.schema.node_types:
        has_times = TIME in folder.schema.columns.get(node_type, {})
        if has_times and node_column(node_type, TIME) not in folder.book.wholes:
            raise ValueError(
                f"{folder.path}: is split by time, and each part has the column {TIME!r} only for its "
                f"{node_type!r} nodes; serve the graph whole, or give the column one number per node, "
                "and partition again"
            )
