"""Small graphs of every shape, random and regular, and what to ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from khop import Seeds
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.schema import EdgeType, NodeType
from reference.hops import PlainGraph

EDGE = ("node", "to", "node")
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


@st.composite
def graphs_and_seeds(draw: st.DrawFn) -> tuple[PlainGraph, dict[NodeType, list[int]]]:
    """Seeds with duplicates, of some types or none."""
    graph = draw(graphs())
    seeds = {
        node_type: draw(st.lists(st.integers(0, count - 1), max_size=5)) if count else []
        for node_type, count in graph.counts.items()
        if draw(st.booleans())
    }
    return graph, seeds


@dataclass(frozen=True)
class RowQuery:
    """A graph and a sample wanted of it."""

    graph: PlainGraph
    seeds: dict[NodeType, list[int]]
    fanouts: list[int | dict[EdgeType, int]]
    replacement: bool
    key: int

    def fanouts_by_type(self) -> list[dict[EdgeType, int]]:
        return [f if isinstance(f, dict) else dict.fromkeys(self.graph.edges, f) for f in self.fanouts]


@st.composite
def questions(draw: st.DrawFn) -> RowQuery:
    """Fanouts for all edge types or for each."""
    graph, seeds = draw(graphs_and_seeds())
    by_type = st.fixed_dictionaries(dict.fromkeys(graph.edges, FANOUTS))
    fanouts = draw(st.lists(FANOUTS | by_type, max_size=3))
    return RowQuery(graph, seeds, fanouts, draw(st.booleans()), draw(st.integers(0, 2**64 - 1)))


def as_seeds(nodes: Mapping[NodeType, list[int]]) -> Seeds:
    tensors = {node_type: torch.tensor(ids, dtype=torch.int64) for node_type, ids in nodes.items()}
    return Seeds(tensors, {node_type: torch.arange(ids.numel()) for node_type, ids in tensors.items()})


def seeds(*nodes: int) -> Seeds:
    """Of a ring."""
    return as_seeds({"node": list(nodes)})


def ring(num_nodes: int, degree: int) -> CscGraph:
    """Node i has in-edges from i + 1, ..., i + degree."""
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return csc_graph_from_edges({"node": num_nodes}, {EDGE: (sources, nodes)})
