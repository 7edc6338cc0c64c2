"""Small random graphs of every shape, and what to ask of them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from tests.reference.hops import PlainGraph

from khop.schema import EdgeType, NodeType

NODE_TYPES = ("user", "item", "tag")
FANOUTS = st.sampled_from([-1, 0, 1, 2, 3, 50])


@st.composite
def graphs(draw: st.DrawFn) -> PlainGraph:
    """One to three node types, isolated nodes, self loops, multi-edges, types without edges or nodes."""
    types = NODE_TYPES[: draw(st.integers(1, 3))]
    counts = {node_type: draw(st.integers(0, 7)) for node_type in types}
    ends = st.tuples(st.sampled_from(types), st.sampled_from(types))
    edges: dict[EdgeType, list[tuple[int, int]]] = {}
    for number, (source, destination) in enumerate(draw(st.lists(ends, min_size=1, max_size=4))):
        pairs = st.tuples(st.integers(0, counts[source] - 1), st.integers(0, counts[destination] - 1))
        possible = counts[source] and counts[destination]
        listed = draw(st.lists(pairs, max_size=25)) if possible else []
        edges[source, f"relation{number}", destination] = listed
    return PlainGraph(counts, edges)


@dataclass(frozen=True)
class Question:
    """A graph and a sample wanted of it."""

    graph: PlainGraph
    seeds: dict[NodeType, list[int]]
    fanouts: list[int | dict[EdgeType, int]]
    replacement: bool
    key: int

    def fanouts_by_type(self) -> list[dict[EdgeType, int]]:
        return [f if isinstance(f, dict) else dict.fromkeys(self.graph.edges, f) for f in self.fanouts]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Seeds with duplicates, of some types or none; fanouts for all edge types or for those named."""
    graph = draw(graphs())
    seeds = {
        node_type: draw(st.lists(st.integers(0, count - 1), max_size=5)) if count else []
        for node_type, count in graph.counts.items()
        if draw(st.booleans())
    }
    by_type = st.dictionaries(st.sampled_from(list(graph.edges)), FANOUTS)
    fanouts = draw(st.lists(FANOUTS | by_type, max_size=3))
    return Question(graph, seeds, fanouts, draw(st.booleans()), draw(st.integers(0, 2**64 - 1)))
