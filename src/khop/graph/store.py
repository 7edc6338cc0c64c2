"""The seam between the multi-hop loop and where the edges lie."""

from __future__ import annotations

from typing import Protocol

from khop.draw import DrawKey, FrontierByType, Hop, NeighborsByType
from khop.schema import NodeType, Schema


class GraphStore(Protocol):
    """Edges, sampled one hop at a time. Every implementation passes tests/contracts/graph_store.py."""

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are, over all partitions."""
        ...

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node: one entry per edge type of `hop.fanouts` whose destination
        type is in `frontier`, in the order of `hop.fanouts`, empty frontiers included.

        A draw depends on (key, hop number, edge type, original node id, slot) alone.
        Rows keep the frontier's order.
        """
        ...
