"""Exclusion of a batch's links from its message passing: a view of the graph without these edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from khop.draw import DrawKey, FrontierByType, Neighbors, NeighborsByType
from khop.graph.store import GraphStore, GraphStoreBase
from khop.kernels.exclude_edges import exclude_edges
from khop.rules.rule import Hop
from khop.sampling.sampler import LinkSeeds
from khop.schema import EdgeType, NodeType, Schema


class Exclude(StrEnum):
    """Edges that a batch of links leaves out of message passing."""

    EDGE = "edge"  # edges between the ends of a link, of the link's type
    # These, and the edges from destination to source, of the reverse type where a type of links has one.
    EDGE_AND_REVERSE = "edge+reverse"


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
    it has more. With uniform draws, all remaining edges of a row are equally likely. Weights of a mean are
    divided by the sum of those that remain in the row. No node is reached through an excluded edge.
    """

    graph: GraphStore
    excluded: Mapping[EdgeType, Tensor]  # int64 (2, pairs), global ids: sources over destinations
    # By relation: the column of relations by edge type, and then int64 (3, pairs), relations below the ends.
    relations: Mapping[EdgeType, str] = field(default_factory=dict)

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
        by_relation = any(edge_type in self.relations for edge_type in self.excluded)
        asked = replace(hop, edge_ids=hop.edge_ids or by_relation)
        drawn = dict(self.graph.sample_hop(frontier, asked, key))
        for edge_type in self.excluded:
            if edge_type in drawn:
                rows, found = frontier[edge_type[2]].nodes, drawn[edge_type]
                kept = self._without(edge_type, found, rows)
                is_mean = hop.rule.has_shares(hop.fanouts[edge_type])
                drawn[edge_type] = _shared_anew(found, kept) if is_mean else kept
        if hop.edge_ids:
            return drawn
        return {edge_type: replace(found, edges=None) for edge_type, found in drawn.items()}

    def _without(self, edge_type: EdgeType, found: Neighbors, rows: Tensor) -> Neighbors:
        excluded = self.excluded[edge_type]
        if edge_type not in self.relations or not (found.nodes.numel() and excluded.numel()):
            return exclude_edges(found, rows, excluded[:2])
        assert found.edges is not None
        relations = self.graph.edge_values(edge_type, self.relations[edge_type], found.edges).long()
        # One number for source and relation, so that edges of one relation are removed like those of a type.
        count = 1 + int(torch.maximum(relations.max(), excluded[2].max()))
        both = replace(found, nodes=found.nodes.long() * count + relations)
        kept = exclude_edges(both, rows, torch.stack([excluded[0] * count + excluded[2], excluded[1]]))
        return replace(kept, nodes=(kept.nodes // count).to(found.nodes.dtype))


def _shared_anew(drawn: Neighbors, kept: Neighbors) -> Neighbors:
    """Return the kept neighbors with shares that add up to 1; rows without excluded edges keep their bits."""
    if kept.weights is None or kept.nodes.numel() == drawn.nodes.numel():
        return kept
    is_cut = kept.by_row(kept.offsets.diff() < drawn.offsets.diff())
    rows = kept.by_row(torch.arange(kept.offsets.numel() - 1, device=kept.offsets.device))
    shares = kept.weights.double()
    totals = torch.bincount(rows, shares, minlength=kept.offsets.numel() - 1)
    return replace(kept, weights=torch.where(is_cut, (shares / totals[rows]).float(), kept.weights))


def reverse_types(schema: Schema, exclude: Exclude | None) -> dict[EdgeType, EdgeType]:
    """Return the reverse types to exclude, by edge type. A type between nodes of one type may be its own."""
    if exclude is not Exclude.EDGE_AND_REVERSE:
        return {}
    found = {t: schema.reverse(t) or (t if t[0] == t[2] else None) for t in schema.edge_types}
    return {edge_type: reverse for edge_type, reverse in found.items() if reverse is not None}


def check_reverses(
    exclude: Exclude | None, edge_types: Collection[EdgeType], reverses: Mapping[EdgeType, EdgeType]
) -> None:
    """Raise ValueError if reverses are to be excluded, and the schema names none of links of these types."""
    is_needed = exclude is Exclude.EDGE_AND_REVERSE and edge_types
    if is_needed and not any(edge_type in reverses for edge_type in edge_types):
        names = " or ".join(map(str, edge_types))
        raise ValueError(
            f'exclude="edge+reverse": the schema names no reverse of {names}; write the graph with '
            'EdgeTable(reverse_of=...), or take exclude="edge"'
        )


def excluded_edges(
    links: LinkSeeds, exclude: Exclude | None, reverses: Mapping[EdgeType, EdgeType]
) -> dict[EdgeType, Tensor]:
    """Return the ends of the edges to leave out, by type, for the links of all ranks in the step.

    Links of a type that is not in `reverses` leave out edges of their own type only.

    Links with relations give int64 (3, pairs), the relations below the ends.
    """
    pairs: dict[EdgeType, list[Tensor]] = {}
    for edge_type, of_type in links.by_type.items():
        if exclude is None or not of_type.batch_edges.numel():
            continue
        relations = () if of_type.batch_relations is None else (of_type.batch_relations,)
        pairs.setdefault(edge_type, []).append(torch.stack([*of_type.batch_edges, *relations]))
        if exclude is not Exclude.EDGE_AND_REVERSE or edge_type not in reverses:
            continue
        back = torch.stack([*of_type.batch_edges.flip(0), *relations])
        pairs.setdefault(reverses[edge_type], []).append(back)
    return {edge_type: torch.cat(of_type, dim=1) for edge_type, of_type in pairs.items()}
