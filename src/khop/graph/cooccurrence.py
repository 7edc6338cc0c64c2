"""Edges between nodes that occur together, such as items bought by the same users."""

from __future__ import annotations

from typing import Protocol

import torch

from khop.arguments import graph_of, whole_number
from khop.graph.build import EdgeTable
from khop.kernels.build_csc import build_csc, index_dtype
from khop.kernels.cooccurrences import cooccurrences
from khop.kernels.csc import Csc
from khop.schema import EdgeType, EdgeTypeName, NodeType, Schema, edge_type_of


class HasEdges(Protocol):
    """A graph whose edges lie in this process: khop.Graph, CscGraph or GraphFolder."""

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are."""
        ...

    def csc(self, edge_type: EdgeType) -> Csc:
        """The edges of a type by destination."""
        ...


def cooccurrence(
    graph: HasEdges,
    edge_type: EdgeTypeName,
    *,
    through: NodeType | None = None,
    min_count: int = 3,
    threads: int = 1,
) -> EdgeTable:
    """Make edges between nodes at one end of `edge_type` that at least `min_count` two-step ways join.

    `through` is the end that is shared, by default the source: of ("user", "buys", "item"), through users, a
    way leads from an item to a user who bought it and on to another item of that user. Parallel edges are
    ways of their own: a user who bought one item once and another three times joins them by three ways. Where
    no edge is repeated, the ways are the users who bought both. Each pair stands in both directions, by
    destination and then by source, no node with itself; the column "count" (int32) has its ways. Only the
    edges of `graph` count: give it the training graph of a split, so that no held-out link shines through.
    10 million edges take seconds and, beside the result and one turned copy of the edges, a few bytes a node.
    """
    graph_of("graph", graph)
    if whole_number("min_count", min_count, most=(1 << 31) - 1) < 1:
        raise ValueError(f"min_count {min_count}: must be at least 1")
    threads = whole_number("threads", threads, 1)
    there, back = _both_ways(graph, edge_type_of(edge_type), through, threads)
    pairs, counts = cooccurrences(there, back, min_count, threads=threads)
    return EdgeTable(pairs.indices, pairs.destinations(dtype=pairs.indices.dtype), {"count": counts})


def _both_ways(
    graph: HasEdges, edge_type: EdgeType, through: NodeType | None, threads: int
) -> tuple[Csc, Csc]:
    """The shared nodes of each joined one, and the joined nodes of each shared one."""
    if edge_type not in graph.schema.edge_types:
        raise ValueError(
            f"cooccurrence: no edge type {edge_type!r}; there are {list(graph.schema.edge_types)}"
        )
    source, _, destination = edge_type
    if through not in (None, source, destination):
        raise ValueError(
            f"cooccurrence of {edge_type}: through is {through!r}, must be one of its ends, "
            f"{source!r} or {destination!r}"
        )
    by_destination = graph.csc(edge_type)
    by_destination.check()
    rows = by_destination.destinations()
    dtype = torch.promote_types(index_dtype(by_destination.num_rows), by_destination.indices.dtype)
    by_source, _ = build_csc(
        rows.to(dtype),
        by_destination.indices.to(dtype),
        graph.num_nodes(destination),
        graph.num_nodes(source),
        threads=threads,
    )
    shared_is_source = through in (None, source)
    return (by_destination, by_source) if shared_is_source else (by_source, by_destination)
