"""Draws of GraphSAINT's node sets: of nodes, of edges, or by random walks (Zeng et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Frontier, Positives, UniformNegatives
from khop.graph.store import GraphStore
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.schema import EdgeType

MOST = (1 << 31) - 1


class SaintDraw(Protocol):
    """A way to draw the nodes of a subgraph: SaintNodes, SaintEdges or SaintWalks."""

    @property
    def first(self) -> DrawnNegatives:
        """The draw of the nodes to start with, from the destinations of the edge type."""
        ...

    @property
    def steps(self) -> int:
        """Number of steps of the walks from these nodes."""
        ...

    @property
    def most_nodes(self) -> int:
        """The most nodes of a subgraph."""
        ...


@dataclass(frozen=True)
class SaintNodes:
    """Draws of nodes in proportion to their in-degree, with replacement."""

    size: int  # draws per subgraph

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1, MOST)

    @property
    def first(self) -> DrawnNegatives:
        """All nodes of the subgraph."""
        return DegreeNegatives(self.size, power=1.0)

    @property
    def steps(self) -> int:
        """None: no walks."""
        return 0

    @property
    def most_nodes(self) -> int:
        """The number of draws."""
        return self.size


@dataclass(frozen=True)
class SaintEdges:
    """Draws of edges u -> v with probability in proportion to 1 / in-degree(v), with replacement.

    In a graph with both directions of every edge, a pair of nodes is drawn in proportion to 1 / degree(u) +
    1 / degree(v), as in the paper. A node without in-edges may be drawn alone.
    """

    size: int  # draws per subgraph

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1, MOST // 2)

    @property
    def first(self) -> DrawnNegatives:
        """The destinations of the edges, uniform."""
        return UniformNegatives(self.size)

    @property
    def steps(self) -> int:
        """One: to a neighbor of each."""
        return 1

    @property
    def most_nodes(self) -> int:
        """Two for each draw."""
        return 2 * self.size


@dataclass(frozen=True)
class SaintWalks:
    """Random walks from uniformly drawn nodes. A step goes to a uniformly drawn in-neighbor.

    A walk that reaches a node without in-edges ends there.
    """

    roots: int  # walks per subgraph
    length: int  # steps of a walk

    def __post_init__(self) -> None:
        whole_number("roots", self.roots, 1, MOST)
        whole_number("length", self.length, 1, 1 << 20)
        whole_number("roots * (length + 1)", self.most_nodes, 1, MOST)

    @property
    def first(self) -> DrawnNegatives:
        """The nodes at which walks start, uniform."""
        return UniformNegatives(self.roots)

    @property
    def steps(self) -> int:
        """The length of the walks."""
        return self.length

    @property
    def most_nodes(self) -> int:
        """All nodes of all walks, if no two are the same."""
        return self.roots * (self.length + 1)


def drawn_nodes(
    graph: GraphStore, edge_type: EdgeType, draw: SaintDraw, positions: Tensor, key: DrawKey
) -> Tensor:
    """Return the nodes drawn for each subgraph, with repeats: int64 (subgraphs, nodes), global ids.

    The draws of a subgraph depend on the key and on its position. A walk is a frontier of one node, in a
    tree of its own, with fanout 1. Collective where the graph is.
    """
    nodes = graph.sample_negatives(edge_type, draw.first, Positives(positions * 0, positions), key)
    visited = [nodes]
    count = nodes.shape[1]
    walkers = (positions[:, None] * count + torch.arange(count)).view(-1)
    at = nodes.reshape(-1)
    for step in range(1, draw.steps + 1):
        at = stepped(graph, edge_type, Frontier(at, tree=walkers), step, key)
        visited.append(at.view(nodes.shape))
    return torch.cat(visited, dim=1)


def stepped(graph: GraphStore, edge_type: EdgeType, walkers: Frontier, step: int, key: DrawKey) -> Tensor:
    """Move each walker to a uniformly drawn in-neighbor; one without in-edges stays. int64 (walkers)."""
    hop = Hop(step, {edge_type: 1}, Uniform(), edge_ids=False)
    found = graph.sample_hop({edge_type[2]: walkers}, hop, key)[edge_type]
    moved = walkers.nodes.clone()
    moved[found.offsets.diff() > 0] = found.nodes.long()
    return moved
