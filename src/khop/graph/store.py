"""The seam between the multi-hop loop and where the edges lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, FrontierByType, Hop, NeighborsByType, Positives
from khop.schema import EdgeType, NodeType, Schema


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


class NegativeStore(GraphStore, Protocol):
    """A graph store that can also draw destinations for the sources of links."""

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """int64 (n, per_positive), global ids of the destination type.

        A draw depends on (key, edge type, position, slot) and on what may be drawn alone. ValueError where
        nothing may be.
        """
        ...


def negative_store(graph: GraphStore, negatives: DrawnNegatives) -> NegativeStore:
    """The graph, known to draw negatives; ValueError where it cannot."""
    if not hasattr(graph, "sample_negatives"):
        raise ValueError(
            f"{negatives}: {type(graph).__name__} has no method sample_negatives; "
            "bring negatives along by khop.Links(negatives=...) and khop.GivenNegatives()"
        )
    return cast(NegativeStore, graph)


def is_collective(graph: GraphStore) -> bool:
    """Whether a hop asks other ranks: then every rank has to make as many, whatever it samples."""
    return getattr(graph, "lanes", None) is not None


def original_ids(graph: GraphStore, node_type: NodeType) -> Tensor | None:
    """int64 (nodes): the ids before they were renumbered, which key all draws; None: they never were."""
    known: Mapping[NodeType, Tensor] = getattr(graph, "original_ids", {})
    return known.get(node_type)


def part_bounds(graph: GraphStore, node_type: NodeType) -> tuple[int, ...]:
    """Where the nodes of each part begin, and where those of the last one end; a graph may be of one part."""
    if hasattr(graph, "part_bounds"):
        return cast(tuple[int, ...], graph.part_bounds(node_type))
    return (0, graph.num_nodes(node_type))
