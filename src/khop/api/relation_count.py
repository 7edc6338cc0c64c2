"""The number of relations of an edge type, counted in its column."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.arguments import graph_of
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.graph.partner_ranks import number_column
from khop.schema import EdgeType, EdgeTypeName, edge_type_of

_AT_ONCE = 1 << 24  # edges


def relation_count(graph: Graph, edge_type: EdgeTypeName, column: str) -> int:
    """Return the number of relations of an edge type: the largest number in `column`, plus 1.

    ValueError for numbers below 0. Collective where ranks hold the edges in parts. Unsupported over servers:
    then give the number yourself, in a run file `links.relations`.
    """
    graph_of("graph", graph)
    edge_type = edge_type_of(edge_type)
    graph.schema.column(edge_type, column)
    edges, ends = graph.rank_edges, [(0, -1)]
    pieces = _values(graph, edge_type, column) if edges is None else _held_values(edges, edge_type, column)
    ends += [(int(values.min()), int(values.max())) for values in pieces]
    bounds = torch.tensor([min(low for low, _ in ends), max(high for _, high in ends)])
    if edges is not None:
        with edges.lanes.group.exchanging("counting relations"):
            of_ranks = edges.lanes.group.gather(bounds)
        bounds = torch.stack([of_ranks[:, 0].min(), of_ranks[:, 1].max()])
    low, high = bounds.tolist()
    if low < 0:
        raise ValueError(
            f"column {column!r} of {edge_type}: relation {low} is below 0; number relations from 0 on"
        )
    return int(high) + 1


def _values(graph: Graph, edge_type: EdgeType, column: str) -> Iterator[Tensor]:
    """Yield the relations of all edges, some at a time."""
    for positions in torch.arange(graph.num_edges(edge_type)).split(_AT_ONCE):
        if positions.numel():
            yield graph.edge_values(edge_type, column, positions)


def _held_values(edges: PartitionedGraph, edge_type: EdgeType, column: str) -> Iterator[Tensor]:
    """Yield the relations of the edges of this rank, some at a time."""
    for part in edges.held.parts:
        number_column(edge_type, column, part.folder.columns()[edge_type])
        for positions in torch.arange(part.csc(edge_type).num_edges).split(_AT_ONCE):
            if positions.numel():
                yield part.column(edge_type, column, positions)
