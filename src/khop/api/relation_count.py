"""The number of relations of an edge type, counted in its column."""

from __future__ import annotations

import torch

from khop.api.open_graph import Graph
from khop.arguments import graph_of
from khop.schema import EdgeTypeName, edge_type_of

_AT_ONCE = 1 << 24  # edges


def relation_count(graph: Graph, edge_type: EdgeTypeName, column: str) -> int:
    """Return the number of relations of an edge type: the largest number in `column`, plus 1.

    ValueError for numbers below 0. Unsupported if this process does not have all edges: then give the number
    yourself, in a run file `links.relations`.
    """
    graph_of("graph", graph)
    edge_type = edge_type_of(edge_type)
    graph.schema.column(edge_type, column)
    largest = -1
    for positions in torch.arange(graph.num_edges(edge_type)).split(_AT_ONCE):
        values = graph.edge_values(edge_type, column, positions)
        if int(values.min()) < 0:
            raise ValueError(
                f"column {column!r} of {edge_type}: relation {int(values.min())} is below 0; number "
                "relations from 0 on"
            )
        largest = max(largest, int(values.max()))
    return largest + 1
