"""Numbers of in-edges of all nodes, wherever the edges are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.api.split_links import AnyLinks
from khop.distributed.rank_links import of_all_nodes
from khop.schema import EdgeType

_AT_ONCE = 1 << 18  # links fetched from a server


def in_degrees(graph: Graph, edge_type: EdgeType, links: Sequence[AnyLinks]) -> Tensor:
    """Return the number of in-edges of each destination in `graph`, int64 (nodes of all partitions).

    A graph on servers shows no edges: there they are counted in `links`, which are the edges of `graph` as
    links. Collective where ranks hold the edges in parts.
    """
    if graph.servers is not None:
        return _counted(graph, edge_type, links)
    if graph.rank_edges is None:
        return graph.local_csc(edge_type).degrees().cpu()
    edges, bounds = graph.rank_edges, graph.rank_edges.held.folder.book.offsets[edge_type[2]]
    own = torch.cat([csc.degrees() for csc, _ in edges.held.rows(edge_type)])
    return of_all_nodes(edges.lanes.peers, edges.holders, bounds, own)


def _counted(graph: Graph, edge_type: EdgeType, lists: Sequence[AnyLinks]) -> Tensor:
    """Count the destinations of links, fetched some at a time; of an undirected edge type both ends."""
    counts = torch.zeros(graph.num_nodes(edge_type[2]), dtype=torch.int64)
    is_undirected = graph.schema.reverse(edge_type) == edge_type
    for links in lists:
        for numbers in torch.arange(links.counts[edge_type]).split(_AT_ONCE):
            sources, destinations = links.rows(edge_type, numbers).edges
            counts += torch.bincount(destinations, minlength=counts.numel())
            if is_undirected:
                counts += torch.bincount(sources[sources != destinations], minlength=counts.numel())
    return counts
