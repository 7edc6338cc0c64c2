"""Expected number of nodes in a batch, local and remote, computed from the size of the graph.

This is a mean-field model. Nodes fall into classes of equal degrees, which are counted in a graph, or
typical of graphs that grew over time. A drawn edge leads to a node with a probability
proportional to its out-edges. A fixed share of the edges leads to other machines, and all other machines are
equally likely. An edge that two hops draw leads to no new node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from khop.planning.degrees import Degrees, Vector
from khop.planning.workload import GraphSize

_HALVINGS = 40  # bisection steps in the search for the share of cut edges


@dataclass(frozen=True, eq=False)
class Population:
    """The nodes of one machine, or of all other machines, with the probability that a batch contains them."""

    nodes: float
    share: Vector  # float64 (classes): share of these nodes
    chance: Vector  # float64 (classes): probability that a batch contains a node
    undrawn: Vector  # float64 (classes): the same, times the share of its in-edges that no hop has drawn yet

    @property
    def expected(self) -> float:
        """The expected number of these nodes in a batch."""
        return self.nodes * float(self.share @ self.chance)

    def draws(self, degrees: Degrees, fanout: int) -> float:
        """Return the expected number of edges that a hop draws for these nodes in the batch."""
        return self.nodes * float(self.share @ (self.chance * _drawn(degrees, fanout)))

    def first_draws(self, degrees: Degrees, fanout: int) -> float:
        """Return the expected number of these edges that no hop before has drawn."""
        return self.nodes * float(self.share @ (self.undrawn * _drawn(degrees, fanout)))

    def reached(self, degrees: Degrees, fanout: int, draws: float) -> Population:
        """Return the population after a hop, of which `draws` new edges have led to some of its nodes."""
        ends = self.nodes * float(self.share @ degrees.ends)
        missed = np.exp(-draws / ends * degrees.ends) if ends > 0 else np.ones_like(self.chance)
        chance = 1 - (1 - self.chance) * missed
        left = 1 - _drawn(degrees, fanout) / np.maximum(degrees.degree, 1e-300)
        return Population(self.nodes, self.share, chance, self.undrawn * left + chance - self.chance)

    def most_likely(self, count: float) -> float:
        """Return the expected number of batch nodes among the `count` most likely nodes."""
        order = np.argsort(-self.chance, stable=True)
        sizes = self.nodes * self.share[order]
        before = np.cumsum(sizes) - sizes
        return float(np.clip(count - before, 0, sizes) @ self.chance[order])


def _drawn(degrees: Degrees, fanout: int) -> Vector:
    """Return the edges that a hop draws for a node of each class."""
    return degrees.degree if fanout < 0 else np.minimum(degrees.degree, fanout)


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """The size of one machine's share of a batch. Entry h of a tuple is after h hops; entry 0 are the seeds.

    Edges have one entry per hop.
    """

    own: tuple[float, ...]  # nodes of this machine
    remote: tuple[float, ...]  # nodes of other machines
    own_edges: tuple[float, ...]  # drawn by each hop from nodes of this machine
    remote_edges: tuple[float, ...]  # drawn by each hop from nodes of others
    others: Population  # the nodes of other machines, after the last hop
    here: Population  # the nodes of this machine, after the last hop

    @property
    def rows(self) -> float:
        """The total number of nodes."""
        return self.own[-1] + self.remote[-1]

    @property
    def edges(self) -> float:
        """The total number of edges."""
        return sum(self.own_edges) + sum(self.remote_edges)

    @property
    def remote_share(self) -> float:
        """The share of remote nodes."""
        return self.remote[-1] / self.rows


def neighborhood(
    graph: GraphSize, fanouts: tuple[int, ...], seeds: float, machines: int, remote_share: float | None
) -> Neighborhood:
    """Predict the neighborhood of `seeds` nodes of one machine, with the layered expansion.

    `remote_share` is the share of remote batch nodes, as printed by `khop partition --fanouts`. None: nodes
    are assigned to machines at random, which gives the largest share that a partition can have.
    """
    degrees = graph.degrees or Degrees.grown(graph.nodes, graph.mean_degree)
    by_chance = 1 - 1 / machines
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
    """Predict the neighborhood, where `cut` is the share of edges that lead to another machine."""
    nodes = graph.nodes / machines
    of_seeds, never = np.full_like(degrees.share, min(1.0, seeds / nodes)), np.zeros_like(degrees.share)
    own = Population(nodes, degrees.share, of_seeds, of_seeds)
    others = Population(graph.nodes - nodes, degrees.share, never, never)
    back = cut / max(machines - 1, 1)  # share of the edges drawn for remote nodes that lead to this machine
    at_own, at_others, own_edges, other_edges = [own.expected], [0.0], [], []
    for fanout in fanouts:
        own_edges.append(own.draws(degrees, fanout))
        other_edges.append(others.draws(degrees, fanout))
        here, there = own.first_draws(degrees, fanout), others.first_draws(degrees, fanout)
        own = own.reached(degrees, fanout, here * (1 - cut) + there * back)
        others = others.reached(degrees, fanout, here * cut + there * (1 - back))
        at_own.append(own.expected)
        at_others.append(others.expected)
    return Neighborhood(tuple(at_own), tuple(at_others), tuple(own_edges), tuple(other_edges), others, own)
