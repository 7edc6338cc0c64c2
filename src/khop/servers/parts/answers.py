"""Answers of the server of a part to the servers of other parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from khop.distributed.held_edges import HeldEdges
from khop.servers.counts import read_nodes
from khop.servers.errors import WrongGraph
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Plain
from khop.servers.parts.existing import touched_answer
from khop.servers.parts.features import SharedFeatures
from khop.servers.parts.graph import SharedGraph, bytes_of
from khop.servers.parts.negatives import edges_between
from khop.servers.parts.split import counts_answer
from khop.servers.parts.views import PartViews
from khop.servers.parts.wire import (
    COUNTS,
    DEGREES,
    EDGES,
    HOP,
    LINK_COUNTS,
    LINK_ROWS,
    NEGATIVES,
    ROWS,
    TOUCHED,
    read_hop,
    read_negatives,
)
from khop.servers.registry import Registry
from khop.servers.served import Answered
from khop.servers.split_arguments import edge_type_of, time_of


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
