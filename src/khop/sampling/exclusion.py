"""Exclusion of a batch's links from its message passing: a view of the graph without these edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.store import GraphStore, GraphStoreBase
from khop.kernels.exclude_edges import exclude_edges
from khop.rules.rule import Hop
from khop.sampling.sampler import LinkSeeds
from khop.schema import EdgeType, NodeType, Schema


class Exclude(StrEnum):
    """Edges that a batch of links leaves out of message passing."""

    EDGE = "edge"  # edges between the ends of a link, of the link's type
    EDGE_AND_REVERSE = "edge+reverse"  # these, and the edges from destination to source, of the reverse type


def checked_exclude(given: Exclude | str) -> Exclude:
    """Return `given` as an `Exclude`; ValueError where it is none."""
    if given not in tuple(Exclude):
        raise ValueError(
            f"exclude {given!r}: must be {', '.join(repr(str(word)) for word in Exclude)} or None"
        )
    return Exclude(given)


@dataclass(frozen=True)
class WithoutEdges(GraphStoreBase):
    """A graph store without some edges. They are drawn as usual and then left out, hop by hop.

    Excluded edges are not replaced by further draws, so a row may give fewer edges than the fanout although
    it has more. With uniform draws, all remaining edges of a row are equally likely. No node is reached
    through an excluded edge.
    """

    graph: GraphStore
    excluded: Mapping[EdgeType, Tensor]  # int64 (2, pairs), global ids: sources over destinations

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        return self.graph.schema

    @property
    def is_collective(self) -> bool:
        """True if a hop of the graph asks other ranks."""
        return self.graph.is_collective

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors of the graph."""
        return self.graph.frontier_device

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the original ids of a node type of the graph."""
        return self.graph.original_ids(node_type)

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.graph.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw from the graph and leave out the excluded edges; see `GraphStore.sample_hop`."""
        drawn = self.graph.sample_hop(frontier, hop, key)
        return {
            edge_type: exclude_edges(found, frontier[edge_type[2]].nodes, self.excluded[edge_type])
            if edge_type in self.excluded
            else found
            for edge_type, found in drawn.items()
        }


def reverse_types(schema: Schema, exclude: Exclude | None) -> dict[EdgeType, EdgeType]:
    """Return the reverse types to exclude, by edge type. A type between nodes of one type may be its own."""
    if exclude is not Exclude.EDGE_AND_REVERSE:
        return {}
    found = {t: schema.reverse(t) or (t if t[0] == t[2] else None) for t in schema.edge_types}
    return {edge_type: reverse for edge_type, reverse in found.items() if reverse is not None}


def excluded_edges(
    links: LinkSeeds, exclude: Exclude | None, reverses: Mapping[EdgeType, EdgeType]
) -> dict[EdgeType, Tensor]:
    """Return the ends of the edges to leave out, by type, for the links of all ranks in the step."""
    pairs: dict[EdgeType, list[Tensor]] = {}
    for edge_type, of_type in links.by_type.items():
        if exclude is None or not of_type.batch_edges.numel():
            continue
        pairs.setdefault(edge_type, []).append(of_type.batch_edges)
        if exclude is not Exclude.EDGE_AND_REVERSE:
            continue
        if edge_type not in reverses:
            raise ValueError(
                f'exclude="edge+reverse": the schema names no reverse of {edge_type}; write the graph with '
                'EdgeTable(reverse_of=...), or take exclude="edge"'
            )
        pairs.setdefault(reverses[edge_type], []).append(of_type.batch_edges.flip(0))
    return {edge_type: torch.cat(of_type, dim=1) for edge_type, of_type in pairs.items()}
