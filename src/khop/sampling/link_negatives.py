"""Negatives of the links of a batch: drawn by the graph, given with the links, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import (
    DrawnNegatives,
    GivenNegatives,
    MixedNegatives,
    Negatives,
    Positives,
    TableNegatives,
    UniformNegatives,
)
from khop.graph.needs import NegativeNeed
from khop.graph.store import GraphStore
from khop.rules.rule import Rule, time_column
from khop.sampling.link_ends import DrawnEnds
from khop.sampling.node_set import check_ids
from khop.sampling.sampler import LinkSeeds, SeedLinks
from khop.schema import EdgeType

SOURCE_DRAWS = 1 << 62  # added to the key of negatives, for those that replace sources
PART_DRAWS = 1 << 56  # added to the key of negatives for each part of mixed negatives before the part


@dataclass(frozen=True)
class LinkNegatives:
    """The way in which a sampler of links finds their negatives."""

    graph: GraphStore
    negatives: Negatives | None
    rule: Rule  # its times limit the draws
    relation: str | None = None  # column of relations: exact negatives are those of a relation

    @property
    def parts(self) -> tuple[DrawnNegatives | GivenNegatives | TableNegatives, ...]:
        """The kinds of negatives, one after another for each link."""
        if isinstance(self.negatives, MixedNegatives):
            return self.negatives.parts
        return () if self.negatives is None else (self.negatives,)

    def needs(self, edge_type: EdgeType) -> Iterator[NegativeNeed]:
        """Yield the arrays from which negatives of links are drawn."""
        for part in self.parts:
            if isinstance(part, GivenNegatives | TableNegatives):
                continue
            for of_end in self._drawn_by(edge_type, part):
                if of_end is not None:
                    yield NegativeNeed(of_end, part, time_column(self.rule, of_end), self.relation)

    def of(self, edge_type: EdgeType, links: LinkSeeds) -> DrawnEnds:
        """Return the negatives of the links of a type."""
        of_type = links.by_type[edge_type]
        if of_type.negatives is not None and not any(isinstance(part, GivenNegatives) for part in self.parts):
            raise ValueError(
                f"links of {edge_type} have negatives, which negatives={self.negatives} would not "
                "use: use negatives=khop.GivenNegatives(), or leave them out of the links"
            )
        found = [
            self._drawn(edge_type, part, links, number)
            if isinstance(part, DrawnNegatives)
            else self._listed(edge_type, part, of_type)
            for number, part in enumerate(self.parts)
        ]
        destinations = [of_part.destinations for of_part in found if of_part.destinations is not None]
        sources = [of_part.sources for of_part in found if of_part.sources is not None]
        return DrawnEnds(*(torch.cat(ends, dim=1) if ends else None for ends in (destinations, sources)))

    def _listed(
        self, edge_type: EdgeType, part: GivenNegatives | TableNegatives, links: SeedLinks
    ) -> DrawnEnds:
        """Return negatives that are not drawn: those of the links, or of their sources in a table."""
        if isinstance(part, TableNegatives):
            sources, count = self.graph.num_nodes(edge_type[0]), self.graph.num_nodes(edge_type[2])
            table = part.table_of(edge_type)
            if len(table) != sources:
                raise ValueError(
                    f"table of negatives of {edge_type}: {len(table)} rows for {sources:,} "
                    f"{edge_type[0]!r} nodes; give one for each"
                )
            found = table[links.edges[0]]
            check_ids(f"table of negatives of {edge_type}", found.flatten(), count)
            return DrawnEnds(found)
        if links.negatives is None:
            raise ValueError(
                f"links of {edge_type} have no negatives, which {self.negatives} takes: "
                "give khop.Links(negatives=...)"
            )
        check_ids(f"negatives of {edge_type}", links.negatives.flatten(), self.graph.num_nodes(edge_type[2]))
        return DrawnEnds(links.negatives)

    def _drawn(
        self, edge_type: EdgeType, negatives: DrawnNegatives, links: LinkSeeds, part: int
    ) -> DrawnEnds:
        of_type = links.by_type[edge_type]
        # Links with the same position get the same draw.
        positions = of_type.positions // negatives.group if negatives.group > 1 else of_type.positions
        relations = None if self.relation is None else of_type.relations
        found: list[Tensor | None] = []
        for number, drawing in enumerate(self._drawn_by(edge_type, negatives)):
            if drawing is None:
                found.append(None)
                continue
            column = time_column(self.rule, drawing)
            given = of_type.edges[number].contiguous()
            wanted = Positives(given, positions, of_type.times, column, relations, self.relation)
            key = links.negative_key.plus(part * PART_DRAWS + number * SOURCE_DRAWS)
            found.append(self.graph.sample_negatives(drawing, negatives, wanted, key))
        return DrawnEnds(*found)

    def _drawn_by(
        self, edge_type: EdgeType, negatives: DrawnNegatives
    ) -> tuple[EdgeType | None, EdgeType | None]:
        """Return the edge types that draw the negative destinations and the negative sources of links."""
        of_destinations = None if negatives.corrupt == "source" else edge_type
        if negatives.corrupt == "destination":
            return of_destinations, None
        reverse = self.graph.schema.reverse(edge_type)
        if reverse is None and edge_type[0] == edge_type[2] and isinstance(negatives, UniformNegatives):
            reverse = None if negatives.exact else edge_type
        if reverse is None:
            raise ValueError(
                f"negatives of {edge_type} with corrupt={negatives.corrupt!r}: sources are drawn by the "
                "reverse edge type, and the schema names none; write the graph with "
                'EdgeTable(reverse_of=...), or use corrupt="destination"'
            )
        return of_destinations, reverse
