"""Exclusion of target links at nodes of low degree (Zhu et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.draw import DrawKey, Frontier
from khop.graph.store import GraphStore
from khop.rules.rule import Hop
from khop.rules.sum import Sum
from khop.sampling.exclusion import Exclude, checked_exclude
from khop.sampling.sampler import LinkSeeds, SeedLinks
from khop.schema import EdgeType


@dataclass(frozen=True)
class SpotTarget:
    """Exclude the links of a batch of which an end has a degree below `below`; others carry messages.

    The degree of a destination is its number of in-edges of the link's type, of a source that of the reverse
    type, or of the link's type if both ends are of one type and it has no reverse. All edges of the graph of
    the sampler count, without limits of time. Zhu et al., arXiv 2306.00899: at nodes with few
    links, a target link that carries messages shifts training most; elsewhere, leaving it out costs edges.
    """

    below: int
    exclude: Exclude = Exclude.EDGE_AND_REVERSE  # the edges of such links that carry no message

    def __post_init__(self) -> None:
        whole_number("below", self.below, 1, (1 << 62))
        object.__setattr__(self, "exclude", checked_exclude(self.exclude))

    def spotted(self, graph: GraphStore, links: LinkSeeds) -> LinkSeeds:
        """Return the links with only those to exclude as links of all ranks. Collective: a hop per type."""
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
    """Return `given` as a value; ValueError where it is no kind of exclusion."""
    if given is None or isinstance(given, SpotTarget):
        return given
    return checked_exclude(given)


def kind_of_exclusion(exclude: Exclude | SpotTarget | None) -> Exclude | None:
    """Return the edges of an excluded link that carry no message."""
    return exclude.exclude if isinstance(exclude, SpotTarget) else exclude


def check_spot_target(graph: GraphStore, edge_type: EdgeType) -> EdgeType:
    """Return the edge type that counts the degrees of sources; ValueError if there is none."""
    found = graph.schema.reverse(edge_type) or (edge_type if edge_type[0] == edge_type[2] else None)
    if found is None:
        raise ValueError(
            f"SpotTarget of {edge_type}: the degrees of {edge_type[0]!r} nodes are counted by the reverse "
            "edge type, and the schema names none; write the graph with EdgeTable(reverse_of=...)"
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
    hop = Hop(1, {edge_type: 1, reverse: 1}, Sum(), edge_ids=False)  # weights are degrees
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
