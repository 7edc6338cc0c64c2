"""Edges of this process as tensors, and rows of all nodes from the rows of its nodes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.api.open_graph import Graph
from khop.distributed.rank_links import rows_of_all_nodes
from khop.exchange.peers import Message
from khop.schema import EdgeType, NodeType

JOINING = Message("joining rows of nodes", "row")


def edges_here(graph: Graph, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
    """Return offsets, int64 (destinations here + 1), and sources, int64 (edges), by destination in order.

    Destinations are all nodes, or the nodes of this rank's partitions. Sources are global ids.
    """
    if graph.rank_edges is None:
        csc = graph.csc(edge_type)
        return csc.indptr, csc.indices.long()
    parts = [csc for csc, _ in graph.rank_edges.held.rows(edge_type)]
    indptr = F.pad(torch.cat([csc.degrees() for csc in parts]).cumsum(0), (1, 0))
    return indptr, torch.cat([csc.indices.long() for csc in parts])


def joined_rows(graph: Graph, node_type: NodeType) -> Callable[[Tensor], Tensor]:
    """Return a function from rows of the nodes here, (nodes here, ...), to rows of all nodes.

    It is collective where ranks hold the edges in parts, and returns the same rows otherwise.
    """
    if (edges := graph.rank_edges) is None:
        return lambda rows: rows
    bounds = edges.held.folder.book.offsets[node_type]
    return lambda rows: rows_of_all_nodes(edges.lanes.peers, edges.holders, bounds, rows, JOINING)
