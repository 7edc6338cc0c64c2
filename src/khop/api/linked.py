"""Destinations that sources are linked to, and sources without an edge: edges read from the other end."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.kernels.csc import Csc
from khop.sampling.link_split import EdgeRange
from khop.schema import EdgeType, NodeType

_AT_ONCE = 1 << 22  # edges


def linked(graph: CscGraph, edge_type: EdgeType, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Return the links of some sources: their positions in `sources`, and the destinations, int64 (links).

    `sources` are int64 (n), without repetition. Reads the rows of the reverse edge type if the graph has one,
    else all edges, some at a time.
    """
    reverse = graph.schema.reverse(edge_type)
    if reverse is not None and reverse in graph.schema.edge_types:
        return _rows(graph.csc(reverse), sources)
    csc, position = graph.csc(edge_type), torch.full((graph.num_nodes(edge_type[0]),), -1)
    position[sources] = torch.arange(sources.numel())
    found = []
    for first, of_edges in _pieces(csc):
        at = position[of_edges.long()]
        edges = (at >= 0).nonzero().squeeze(1)
        found.append(torch.stack([at[edges], EdgeRange(csc).ends(first + edges)[1]]))
    at, destinations = torch.cat(found, dim=1) if found else torch.empty(2, 0, dtype=torch.int64)
    return at, destinations


def without_edges(graph: CscGraph, node_type: NodeType) -> Tensor:
    """Return a mask of the nodes of a type at no end of any edge, bool (nodes)."""
    touched = torch.zeros(graph.num_nodes(node_type), dtype=torch.bool)
    for edge_type in graph.schema.edge_types:
        csc = graph.csc(edge_type)
        if edge_type[2] == node_type:
            touched |= csc.degrees() > 0
        if edge_type[0] == node_type:
            for _, sources in _pieces(csc):
                touched[sources.long()] = True
    return ~touched


def _rows(csc: Csc, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entries of some rows: the positions of their rows in `rows`, and the indices."""
    csc.check_rows()
    starts, counts = csc.indptr[rows], csc.indptr[rows + 1] - csc.indptr[rows]
    at = torch.repeat_interleave(torch.arange(rows.numel()), counts)
    within = torch.arange(at.numel()) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return at, csc.indices[starts[at] + within].long()


def _pieces(csc: Csc) -> Iterator[tuple[int, Tensor]]:
    """Yield the sources of consecutive edges, each with the position of the first edge."""
    for first in range(0, csc.num_edges, _AT_ONCE):
        yield first, csc.indices[first : first + _AT_ONCE]
