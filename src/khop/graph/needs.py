"""Arrays that draws need, as a sampler asks a graph store to build them before the first batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from khop.draw import DrawnNegatives
from khop.graph.rule import Need as RuleNeed
from khop.schema import EdgeType


@dataclass(frozen=True)
class NegativeNeed:
    """The arrays that negatives of links of an edge type are drawn from."""

    edge_type: EdgeType
    negatives: DrawnNegatives
    time_column: str | None = None  # of the nodes, if links have times
    relation_column: str | None = None  # of the edges, if links have relations


Need = RuleNeed | NegativeNeed


def rule_needs(needs: Collection[Need]) -> list[RuleNeed]:
    """Return the needs of rules."""
    return [need for need in needs if isinstance(need, RuleNeed)]


def negative_needs(needs: Collection[Need]) -> list[NegativeNeed]:
    """Return the needs of negatives."""
    return [need for need in needs if isinstance(need, NegativeNeed)]
