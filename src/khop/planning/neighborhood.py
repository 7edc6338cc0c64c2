"""How many nodes a batch will need, and where they will lie, from a graph's size alone.

A mean-field model. Nodes fall into classes of equal degree; degrees are distributed as in many graphs that
grew (Lomax, tail exponent 2.3), a node has as many out-edges as in-edges, and a drawn edge leads to a node
with a chance proportional to its degree. A share of the edges leads to other machines, all of them alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from khop.planning.workload import GraphSize

Vector = npt.NDArray[np.float64]

_TAIL = 2.3
_CLASSES = 400
_HALVINGS = 40  # of the interval where the share of cut edges is looked for


@dataclass(frozen=True, eq=False)
class Degrees:
    """Classes of nodes."""

    share: Vector  # float64 (classes), of all nodes
    degree: Vector  # float64 (classes)

    @classmethod
    def of(cls, graph: GraphSize) -> Degrees:
        """The classes of a graph: their degrees have its mean, and none exceeds its nodes."""
        rank = np.logspace(0, -math.log10(graph.nodes), _CLASSES + 1)
        share = rank[:-1] - rank[1:]
        share[-1] += rank[-1]
        degree = np.sqrt(rank[:-1] * rank[1:]) ** (-1 / _TAIL) - 1
        for _ in range(8):  # the bound lowers the mean
            degree = degree * (graph.mean_degree / max(float(share @ degree), 1e-300))
            degree = np.minimum(degree, graph.nodes)
        return cls(share, degree)


@dataclass(frozen=True, eq=False)
class Population:
    """The nodes that one machine owns, or those of all others, and how likely a batch has each."""

    nodes: float
    share: Vector  # float64 (classes), of these nodes
    chance: Vector  # float64 (classes)

    @property
    def expected(self) -> float:
        """How many of them a batch has."""
        return self.nodes * float(self.share @ self.chance)

    def draws(self, degrees: Degrees, fanout: int) -> float:
        """How many edges a hop draws from those that a batch has."""
        drawn = degrees.degree if fanout < 0 else np.minimum(degrees.degree, fanout)
        return self.nodes * float(self.share @ (self.chance * drawn))

    def reached(self, degrees: Degrees, draws: float) -> Population:
        """The same nodes after so many edges have led to some of them."""
        ends = self.nodes * float(self.share @ degrees.degree)
        missed = np.exp(-draws / ends * degrees.degree) if ends > 0 else np.ones_like(self.chance)
        return Population(self.nodes, self.share, 1 - (1 - self.chance) * missed)

    def most_likely(self, count: float) -> float:
        """How many nodes a batch has of the `count` that are likeliest."""
        order = np.argsort(-self.chance, stable=True)
        sizes = self.nodes * self.share[order]
        before = np.cumsum(sizes) - sizes
        return float(np.clip(count - before, 0, sizes) @ self.chance[order])


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """What one machine's share of a batch comes to. Entry h of a list is after h hops; 0 are the seeds."""

    own: tuple[float, ...]  # nodes of this machine
    remote: tuple[float, ...]  # nodes of other machines
    own_edges: tuple[float, ...]  # drawn by each hop from nodes of this machine
    remote_edges: tuple[float, ...]  # drawn by each hop from nodes of others
    others: Population  # those of other machines, after the last hop

    @property
    def rows(self) -> float:
        """Nodes in all."""
        return self.own[-1] + self.remote[-1]

    @property
    def edges(self) -> float:
        """Edges in all."""
        return sum(self.own_edges) + sum(self.remote_edges)

    @property
    def remote_share(self) -> float:
        """Of the nodes."""
        return self.remote[-1] / self.rows


def neighborhood(
    graph: GraphSize, fanouts: tuple[int, ...], seeds: float, machines: int, remote_share: float | None
) -> Neighborhood:
    """What a batch of `seeds` of one machine's own nodes needs, by the layered expansion.

    `remote_share` is what `khop partition --fanouts` says of the batch's nodes; None: nodes are dealt to
    machines by chance, which is the most that a partition can make of it.
    """
    degrees, by_chance = Degrees.of(graph), 1 - 1 / machines
    most = _expanded(graph, degrees, fanouts, seeds, machines, by_chance)
    if remote_share is None or machines == 1 or remote_share >= most.remote_share:
        return most
    low, high = 0.0, by_chance
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _expanded(graph, degrees, fanouts, seeds, machines, middle)
        low, high = (middle, high) if found.remote_share < remote_share else (low, middle)
    return found


def _expanded(
    graph: GraphSize, degrees: Degrees, fanouts: tuple[int, ...], seeds: float, machines: int, cut: float
) -> Neighborhood:
    """Where `cut` is the share of edges that lead to another machine."""
    nodes = graph.nodes / machines
    certain, never = np.ones_like(degrees.share), np.zeros_like(degrees.share)
    own = Population(nodes, degrees.share, certain * min(1.0, seeds / nodes))
    others = Population(graph.nodes - nodes, degrees.share, never)
    back = cut / max(machines - 1, 1)  # of what leads on from another machine, what leads here
    at_own, at_others, own_edges, other_edges = [own.expected], [0.0], [], []
    for fanout in fanouts:
        here, there = own.draws(degrees, fanout), others.draws(degrees, fanout)
        own = own.reached(degrees, here * (1 - cut) + there * back)
        others = others.reached(degrees, here * cut + there * (1 - back))
        at_own.append(own.expected)
        at_others.append(others.expected)
        own_edges.append(here)
        other_edges.append(there)
    return Neighborhood(tuple(at_own), tuple(at_others), tuple(own_edges), tuple(other_edges), others)
