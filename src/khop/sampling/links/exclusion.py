"""Exclusion of target links from the message graph, for all links or at low degrees (SpotTarget, 2023)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from khop.arguments import checked_field, whole_number
from khop.draw import DrawKey, Frontier, FrontierByType, Neighbors, NeighborsByType
from khop.graph.rule import Hop
from khop.graph.store import GraphStore, GraphStoreBase, edge_values
from khop.kernels.edge_arrays import exclude_edges
from khop.sampling.rules.sum import COUNTING
from khop.sampling.seeds import LinkSeeds, SeedLinks
from khop.schema import EdgeType, NodeType, Schema


class Exclude(StrEnum):
    """Edges that are excluded from the message graph of a batch of links.

    Example:
        >>> graph = khop.open_graph("debian")
        >>> khop.LinkSampler(graph, [5], exclude=khop.Exclude.EDGE).exclude
        <Exclude.EDGE: 'edge'>
    """

    EDGE = "edge"
    """Edges between the ends of a link, of the link's type."""
    # These, and the edges from destination to source, of the reverse type where a type of links has one.
    EDGE_AND_REVERSE = "edge+reverse"
    """These, and the edges from destination to source, of the reverse type where a type of links has one."""


def checked_exclude(given: Exclude | str) -> Exclude:
    """Return `given` as an `Exclude`; ValueError if it is invalid."""
    if given not in tuple(Exclude):
        raise ValueError(
            f"exclude {given!r}: must be {', '.join(repr(str(word)) for word in Exclude)} or None"
        )
    return Exclude(given)


@dataclass(frozen=True)
class WithoutEdges(GraphStoreBase):
    """A graph store without some edges. They are drawn as usual and then left out, hop by hop.

    Excluded edges are not replaced by other draws, so a row may have fewer edges than the fanout although
    the graph has more. With uniform draws, all remaining edges of a row are equally likely. Weights of a mean
    are renormalized over the remaining edges of a row. No node is reached through an excluded edge.
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
        """True if a hop of the graph is collective."""
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
        relations = edge_values(self.graph, edge_type, self.relations[edge_type], found.edges).long()
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
    """Return the reverse type to exclude for each edge type. A symmetric type is its own reverse."""
    if exclude is not Exclude.EDGE_AND_REVERSE:
        return {}
    found = {t: schema.reverse(t) or (t if t[0] == t[2] else None) for t in schema.edge_types}
    return {edge_type: reverse for edge_type, reverse in found.items() if reverse is not None}


def check_reverses(
    exclude: Exclude | None, edge_types: Collection[EdgeType], reverses: Mapping[EdgeType, EdgeType]
) -> None:
    """Raise ValueError if reverses are to be excluded, but the schema has no reverse of these types."""
    is_needed = exclude is Exclude.EDGE_AND_REVERSE and edge_types
    if is_needed and not any(edge_type in reverses for edge_type in edge_types):
        names = " or ".join(map(str, edge_types))
        raise ValueError(
            f'exclude="edge+reverse": the schema has no reverse of {names}; write the graph with '
            'EdgeTable(reverse_of=...), or give exclude="edge"'
        )


def excluded_edges(
    links: LinkSeeds, exclude: Exclude | None, reverses: Mapping[EdgeType, EdgeType]
) -> dict[EdgeType, Tensor]:
    """Return the ends of the edges to leave out, by type, for the links of all ranks in the step.

    Links of a type that is not in `reverses` exclude only edges of the same type. Links with relations give
    int64 (3, pairs): sources, destinations, relations.
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


@dataclass(frozen=True)
class SpotTarget:
    """Exclusion of the batch's links at nodes of low degree; the other links pass messages.

    The degree of a destination is its number of in-edges of the link's edge type. The degree of a source is
    its number of in-edges of the reverse type. If both endpoints have the same node type and the edge type
    has no reverse, in-edges of the link's type count for both. All edges of the sampler's graph count,
    without time limits. Zhu et al., arXiv 2306.00899: messages over a target link distort training most at
    nodes with few links; at other nodes, excluding the link loses messages.

    Args:
        below: Degree of an endpoint below which a link is excluded from the message graph; at least 1.
        exclude: Edges to exclude for each excluded link: "edge" or "edge+reverse" (default).
    Raises:
        ValueError: `below` is less than 1, or `exclude` is invalid.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.LinkSampler(graph, [10], exclude=khop.SpotTarget(below=10))
    """

    below: int
    exclude: Exclude = Exclude.EDGE_AND_REVERSE

    def __post_init__(self) -> None:
        checked_field(self, "below", whole_number, 1, (1 << 62))
        object.__setattr__(self, "exclude", checked_exclude(self.exclude))

    def spotted(self, graph: GraphStore, links: LinkSeeds) -> LinkSeeds:
        """Return the links with only those to exclude as links of all ranks. Collective: a hop per type.

        Args:
            graph: Graph of the sampler.
            links: Links of the step.
        """
        return replace(links, by_type={t: self._spotted(graph, t, of) for t, of in links.by_type.items()})

    def _spotted(self, graph: GraphStore, edge_type: EdgeType, links: SeedLinks) -> SeedLinks:
        low = _lower_degrees(graph, edge_type, links.batch_edges) < self.below
        relations = links.batch_relations
        return replace(
            links,
            batch_edges=links.batch_edges[:, low],
            batch_relations=None if relations is None else relations[low],
        )


def checked_exclusion(given: Exclude | SpotTarget | str | None) -> Exclude | SpotTarget | None:
    """Return `given` as a value; ValueError if it is not a kind of exclusion."""
    if given is None or isinstance(given, SpotTarget):
        return given
    return checked_exclude(given)


def kind_of_exclusion(exclude: Exclude | SpotTarget | None) -> Exclude | None:
    """Return the edges to exclude for each excluded link."""
    return exclude.exclude if isinstance(exclude, SpotTarget) else exclude


def check_spot_target(graph: GraphStore, edge_type: EdgeType) -> EdgeType:
    """Return the edge type that counts the degrees of sources; ValueError if there is none."""
    found = graph.schema.reverse(edge_type) or (edge_type if edge_type[0] == edge_type[2] else None)
    if found is None:
        raise ValueError(
            f"SpotTarget of {edge_type}: the degrees of {edge_type[0]!r} nodes are counted in the reverse "
            "edge type, but the schema has none; write the graph with EdgeTable(reverse_of=...)"
        )
    return found


def _lower_degrees(graph: GraphStore, edge_type: EdgeType, ends: Tensor) -> Tensor:
    """Return the smaller degree of the two ends of each link, int64 (links)."""
    reverse = check_spot_target(graph, edge_type)
    sources, destinations = ends
    if reverse[2] == edge_type[2]:
        frontier = {edge_type[2]: Frontier(ends.flatten())}
    else:
        frontier = {reverse[2]: Frontier(sources), edge_type[2]: Frontier(destinations)}
    hop = Hop(1, {edge_type: 1, reverse: 1}, COUNTING, edge_ids=False)  # weights are degrees
    drawn = graph.sample_hop(frontier, hop, DrawKey(0))
    degrees = []
    for counted in (reverse, edge_type):
        found = drawn[counted]
        assert found.weights is not None
        of_rows = torch.zeros(found.offsets.numel() - 1, dtype=torch.int64)
        of_rows[found.offsets.diff() > 0] = found.weights.round().long()
        degrees.append(of_rows)
    of_sources, of_destinations = degrees
    if reverse[2] == edge_type[2]:
        of_sources, of_destinations = of_sources[: sources.numel()], of_destinations[sources.numel() :]
    return torch.minimum(of_sources, of_destinations)
