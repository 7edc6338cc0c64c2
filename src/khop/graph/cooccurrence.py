"""Edges between nodes that occur together, such as items bought by the same users."""

from __future__ import annotations

from typing import Protocol

import torch

from khop.arguments import graph_of, whole_number
from khop.graph.tables import EdgeTable
from khop.kernels.build_csc import build_csc, index_dtype
from khop.kernels.cooccurrences import cooccurrences
from khop.kernels.csc import Csc
from khop.schema import EdgeType, EdgeTypeName, NodeType, Schema, edge_type_of


class HasEdges(Protocol):
    """A graph with its edges in this process: khop.Graph, CscGraph or GraphFolder."""

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        ...

    def csc(self, edge_type: EdgeType) -> Csc:
        """Return the edges of a type by destination."""
        ...


def cooccurrence(
    graph: HasEdges,
    edge_type: EdgeTypeName,
    *,
    through: NodeType | None = None,
    min_count: int = 3,
    threads: int = 1,
) -> EdgeTable:
    """Connect nodes at one end of `edge_type` that are joined by at least `min_count` two-step paths.

    `through` is the shared end, by default the source. For ("user", "buys", "item") through users, a path
    leads from an item to a user who bought it, and on to another item of that user. Parallel edges are
    separate paths: if a user bought one item once and another three times, three paths join the two items. If
    no edge is repeated, the number of paths is the number of users who bought both items.

    The result has each pair in both directions, sorted by destination and then by source, without self-loops.
    Its column "count" (int32) has the number of paths. Only edges of `graph` count. Give it the training
    graph of a split, so that held-out links do not leak into the result.

    10 million edges take seconds. Besides the result and one transposed copy of the edges, this needs a few
    bytes per node.
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
    """Return the CSC from each joined node to its shared nodes, and the CSC in the opposite direction."""
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
