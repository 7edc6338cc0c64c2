"""The links of a batch kept out of its message passing: a view of the graph without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from khop.draw import DrawKey, FrontierByType, Hop, NeighborsByType
from khop.graph.store import GraphStore
from khop.kernels.exclude_edges import exclude_edges
from khop.sampling.sampler import LinkSeeds
from khop.schema import EdgeType, NodeType, Schema


class Exclude(StrEnum):
    """Which edges a batch of links leaves out."""

    EDGE = "edge"  # those between the ends of a link, of the link's own type
    EDGE_AND_REVERSE = "edge+reverse"  # and those that lead back, of the type's reverse


def checked_exclude(given: Exclude | str) -> Exclude:
    """ValueError for a word that says nothing about edges."""
    if given not in tuple(Exclude):
        raise ValueError(
            f"exclude {given!r}: must be {', '.join(repr(str(word)) for word in Exclude)} or None"
        )
    return Exclude(given)


@dataclass(frozen=True)
class WithoutEdges:
    """A graph store without some edges: drawn as if they were there, then left out, hop by hop.

    What is left of a row is an even draw of the edges that are left, no larger than the fanout: a row may
    have fewer although there are more. Nothing is reached through an edge that was left out.
    """

    graph: GraphStore
    excluded: Mapping[EdgeType, Tensor]  # int64 (2, pairs), global ids: sources over destinations

    @property
    def schema(self) -> Schema:
        """The graph's types."""
        return self.graph.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are."""
        return self.graph.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """The graph's draw, without the excluded edges; see GraphStore."""
        drawn = self.graph.sample_hop(frontier, hop, key)
        return {
            edge_type: exclude_edges(found, frontier[edge_type[2]].nodes, self.excluded[edge_type])
            if edge_type in self.excluded
            else found
            for edge_type, found in drawn.items()
        }


def reverse_types(schema: Schema, exclude: Exclude | None) -> dict[EdgeType, EdgeType]:
    """The edge types that have a reverse to be excluded. A type between nodes of one type may be its own."""
    if exclude is not Exclude.EDGE_AND_REVERSE:
        return {}
    found = {t: schema.reverse(t) or (t if t[0] == t[2] else None) for t in schema.edge_types}
    return {edge_type: reverse for edge_type, reverse in found.items() if reverse is not None}


def excluded_edges(
    links: LinkSeeds, exclude: Exclude | None, reverses: Mapping[EdgeType, EdgeType]
) -> dict[EdgeType, Tensor]:
    """The ends of the edges to leave out, by type: those of all ranks' links in the step."""
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
