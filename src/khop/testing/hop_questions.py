"""One hop of draws over small graphs, for the contract suite of `khop.Rule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st
from torch import Tensor

from khop.draw import DrawKey, Frontier, Neighbors
from khop.rules.rule import FrontierField, Hop, Rule
from khop.schema import EdgeType, NodeType
from khop.testing.graphs import TIMES, PlainGraph, int64, plain_graphs_with_columns
from khop.testing.promises import expect_equal

Drawn = Mapping[EdgeType, Neighbors]
Row = tuple[list[int], list[int], list[float] | None]


@dataclass(frozen=True)
class Question:
    """One hop over a small graph."""

    plain: PlainGraph
    frontier: dict[NodeType, Frontier]
    fanouts: dict[EdgeType, int]
    key: DrawKey

    def hop(self, rule: Rule) -> Hop:
        """Return the hop by a rule."""
        return Hop(2, self.fanouts, rule, edge_ids=True)

    def drawn(self, rule: Rule) -> Drawn:
        """Draw from khop's store of the graph."""
        return self.plain.in_memory().sample_hop(self.frontier, self.hop(rule), self.key)


@st.composite
def questions(draw: st.DrawFn, rule: Rule) -> Question:
    """Draw frontiers with the fields that the rule reads, and fanouts of all kinds."""
    plain = draw(plain_graphs_with_columns())
    frontier = {}
    for node_type, count in plain.counts.items():
        nodes = draw(st.lists(st.integers(0, count - 1), max_size=6))
        fields: dict[str, Tensor] = {}
        if FrontierField.UNTIL in rule.frontier_fields:
            fields["until"] = int64([draw(TIMES) for _ in nodes])
        if FrontierField.TREE in rule.frontier_fields and draw(st.booleans()):
            fields["tree"] = int64([draw(st.integers(0, 99)) for _ in nodes])
        frontier[node_type] = Frontier(int64(nodes), **fields)
    fanouts = {edge_type: draw(st.integers(-1, 6)) for edge_type in plain.edges}
    return Question(plain, frontier, fanouts, DrawKey(draw(st.integers(0, 2**64 - 1))))


def rows_of(drawn: Neighbors) -> list[Row]:
    """Return nodes, edges and weights of each row."""
    assert drawn.edges is not None
    return [
        (
            drawn.nodes[begin:end].tolist(),
            drawn.edges[begin:end].tolist(),
            None if drawn.weights is None else drawn.weights[begin:end].tolist(),
        )
        for begin, end in pairwise(drawn.offsets.tolist())
    ]


def sorted_edges(drawn: Neighbors) -> list[list[tuple[int, float]]]:
    """Return the edges of each row with their weights, 0 if there are none, in ascending order."""
    return [
        sorted(zip(edges, weights or [0.0] * len(edges), strict=True)) for _, edges, weights in rows_of(drawn)
    ]


def expect_same(what: str, one: Drawn, other: Drawn) -> None:
    """Raise AssertionError unless two results of a hop are equal."""
    expect_equal(f"edge types {what}", list(one), list(other))
    for edge_type, found in one.items():
        expect_equal(f"rows of {edge_type} {what}", rows_of(found), rows_of(other[edge_type]))
