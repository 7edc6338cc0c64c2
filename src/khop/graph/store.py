"""Protocol between the multi-hop loop and the storage of the edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType, Schema


class GraphStore(Protocol):
    """Edges, sampled one hop at a time. Every implementation passes tests/contracts/graph_store.py."""

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type, over all partitions."""
        ...

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node.

        The result has one entry per edge type of `hop.fanouts` with its destination type in `frontier`, in
        the order of `hop.fanouts`. Empty frontiers have entries too. A draw depends on (key, hop number, edge
        type, original node id, slot) alone. Rows keep the frontier's order.
        """
        ...


class NegativeStore(GraphStore, Protocol):
    """A graph store that can also draw destinations for the sources of links."""

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw negatives: int64 (n, per_positive), global ids of the destination type.

        A draw depends only on (key, edge type, position, slot) and on the candidates. ValueError if there are
        none.
        """
        ...


def negative_store(graph: GraphStore, negatives: DrawnNegatives) -> NegativeStore:
    """Return the graph as a NegativeStore; ValueError if it cannot draw negatives."""
    if not hasattr(graph, "sample_negatives"):
        raise ValueError(
            f"{negatives}: {type(graph).__name__} has no method sample_negatives; "
            "give negatives with khop.Links(negatives=...) and khop.GivenNegatives()"
        )
    return cast(NegativeStore, graph)


def device_of(graph: GraphStore) -> torch.device:
    """Return the device of frontiers and drawn neighbors: that of the graph's edges."""
    return cast(torch.device, getattr(graph, "device", torch.device("cpu")))


def is_collective(graph: GraphStore) -> bool:
    """Return True if a hop asks other ranks. Every rank must then make the same number of hops."""
    return getattr(graph, "lanes", None) is not None


def original_ids(graph: GraphStore, node_type: NodeType) -> Tensor | None:
    """Return int64 (nodes): the ids before renumbering, which key all draws; None if never renumbered."""
    known: Mapping[NodeType, Tensor] = getattr(graph, "original_ids", {})
    return known.get(node_type)


def part_bounds(graph: GraphStore, node_type: NodeType) -> tuple[int, ...]:
    """Return the first node id of each partition, then the end of the last one.

    A graph without partitions counts as one partition.
    """
    if hasattr(graph, "part_bounds"):
        return cast(tuple[int, ...], graph.part_bounds(node_type))
    return (0, graph.num_nodes(node_type))
