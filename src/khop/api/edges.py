"""Queries on the edges of a graph, which may be partitioned: degrees, local edges, linked nodes.

Queries on all nodes are collective: each rank counts its edges, and the ranks exchange the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.api.open_graph import Graph
from khop.arguments import graph_of
from khop.distributed.owners import (
    JoinedRows,
    NodeDegrees,
    RankOwners,
    counts_of_all_nodes,
    rows_of_all_nodes,
)
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.graph.negatives import number_column
from khop.graph.store import CscGraph, edge_values
from khop.kernels.csc import Csc
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.link_split import EdgeRange
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of

_AT_ONCE = 1 << 18  # links per fetch from a server


def in_degrees(graph: Graph, edge_type: EdgeType, links: Sequence[LinkList]) -> Tensor:
    """Return the in-degree of each destination in `graph`, int64 (nodes of all partitions).

    If the graph is on servers, its edges are counted in `links`, which are the edges of `graph` as links.
    Collective if edges are partitioned across ranks.
    """
    if graph.servers is not None:
        return _counted(graph, edge_type, links)
    if graph.rank_edges is None:
        return graph.local_csc(edge_type).degrees().cpu()
    edges, bounds = graph.rank_edges, graph.rank_edges.held.folder.book.offsets[edge_type[2]]
    own = torch.cat([csc.degrees() for csc, _ in edges.held.rows(edge_type)])
    return counts_of_all_nodes(edges.owners, bounds, own, NodeDegrees(edge_type))


def _counted(graph: Graph, edge_type: EdgeType, lists: Sequence[LinkList]) -> Tensor:
    """Count the destinations of links, fetched in chunks; for an undirected edge type, both ends."""
    counts = torch.zeros(graph.num_nodes(edge_type[2]), dtype=torch.int64)
    is_undirected = graph.schema.reverse(edge_type) == edge_type
    for links in lists:
        for numbers in torch.arange(links.counts[edge_type]).split(_AT_ONCE):
            sources, destinations = links.rows(edge_type, numbers).edges
            counts += torch.bincount(destinations, minlength=counts.numel())
            if is_undirected:
                counts += torch.bincount(sources[sources != destinations], minlength=counts.numel())
    return counts


def edges_here(graph: Graph, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
    """Return the local edges: offsets, int64 (local destinations + 1), and sources, int64 (edges).

    Rows are destinations in order: all nodes, or the nodes of this rank's partitions. Sources are global ids.
    """
    if graph.rank_edges is None:
        csc = graph.csc(edge_type)
        return csc.indptr, csc.indices.long()
    parts = [csc for csc, _ in graph.rank_edges.held.rows(edge_type)]
    indptr = F.pad(torch.cat([csc.degrees() for csc in parts]).cumsum(0), (1, 0))
    return indptr, torch.cat([csc.indices.long() for csc in parts])


def joined_rows(graph: Graph, node_type: NodeType) -> Callable[[Tensor], Tensor]:
    """Return a function that all-gathers node rows: from (local nodes, ...) to (all nodes, ...).

    It is collective if edges are partitioned across ranks; otherwise, it returns its input.
    """
    if (edges := graph.rank_edges) is None:
        return lambda rows: rows
    bounds = edges.held.folder.book.offsets[node_type]
    return lambda rows: rows_of_all_nodes(edges.owners, bounds, rows, JoinedRows())


_EDGES_AT_ONCE = 1 << 22  # edges


def linked(graph: CscGraph, edge_type: EdgeType, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Return the links of some sources: positions in `sources`, and destinations, int64 (links).

    `sources` are int64 (n), without duplicates. Reads the rows of the reverse edge type if the graph has one,
    else all edges in chunks.
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
    """Return a mask of the isolated nodes of a type, bool (nodes)."""
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
    for first in range(0, csc.num_edges, _EDGES_AT_ONCE):
        yield first, csc.indices[first : first + _EDGES_AT_ONCE]


_RELATIONS_AT_ONCE = 1 << 24  # edges


def relation_count(graph: Graph, edge_type: EdgeTypeName, column: str) -> int:
    """Return the number of relations of an edge type: the largest value in a column, plus 1.

    Collective if edges are partitioned across ranks. Unsupported for graphs on servers: give the number
    instead, for example as `links.relations` in a run file.

    Args:
        graph: The graph.
        edge_type: The edge type.
        column: Edge column of relations, one integer per edge.
    Returns:
        The number of relations.
    Raises:
        ValueError: A relation is below 0, or the graph lacks the column.
    Example:
        >>> edges = khop.EdgeTable(torch.arange(3), torch.arange(3), {"kind": torch.tensor([0, 2, 1])})
        >>> path = khop.write_graph(tmp / "graph", {"item": khop.NodeTable(3)}, {"item to item": edges})
        >>> khop.relation_count(khop.open_graph(path), "item to item", "kind")
        3
    """
    graph_of("graph", graph)
    edge_type = edge_type_of(edge_type)
    graph.schema.column(edge_type, column)
    edges, ends = graph.rank_edges, [(0, -1)]
    pieces = _values(graph, edge_type, column) if edges is None else _held_values(edges, edge_type, column)
    ends += [(int(values.min()), int(values.max())) for values in pieces]
    bounds = torch.tensor([min(low for low, _ in ends), max(high for _, high in ends)])
    if edges is not None:
        assert isinstance(edges.owners, RankOwners)
        group = edges.owners.lanes.group
        with group.exchanging("counting relations"):
            of_ranks = group.gather(bounds)
        bounds = torch.stack([of_ranks[:, 0].min(), of_ranks[:, 1].max()])
    low, high = bounds.tolist()
    if low < 0:
        raise ValueError(
            f"column {column!r} of {edge_type}: relation {low} is below 0; number relations from 0"
        )
    return int(high) + 1


def _values(graph: Graph, edge_type: EdgeType, column: str) -> Iterator[Tensor]:
    """Yield the relations of all edges, in chunks."""
    for positions in torch.arange(graph.num_edges(edge_type)).split(_RELATIONS_AT_ONCE):
        if positions.numel():
            yield edge_values(graph, edge_type, column, positions)


def _held_values(edges: PartitionedGraph, edge_type: EdgeType, column: str) -> Iterator[Tensor]:
    """Yield the relations of this rank's edges, in chunks."""
    for part in edges.held.parts:
        number_column(edge_type, column, part.folder.columns()[edge_type])
        for positions in torch.arange(part.csc(edge_type).num_edges).split(_RELATIONS_AT_ONCE):
            if positions.numel():
                yield part.column(edge_type, column, positions)
