"""Views of a graph in parts: fewer edge types, edges before a time, parts of splits of links."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from khop.distributed.held_edges import HeldEdges
from khop.features.store import FeatureStore
from khop.sampling.link_seeds import LinkList
from khop.sampling.time_split import PARTS, positions_before
from khop.servers.json_fields import Document, written
from khop.servers.kept_views import KeptViews
from khop.servers.parts.existing import existing
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.links import shared_links
from khop.servers.parts.split import SharedSplit
from khop.servers.served import Viewed
from khop.servers.split_arguments import SplitArguments, edge_type_of, time_of


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
