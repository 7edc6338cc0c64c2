"""Nodes grouped by degree: counted in a graph, or typical of large graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_TAIL = 2.3
_CLASSES = 400


@dataclass(frozen=True, eq=False)
class Degrees:
    """Classes of nodes of one type with equal degrees."""

    share: Vector  # float64 (classes): share of all nodes
    degree: Vector  # float64 (node types, classes): in-edges from nodes of each type, which hops draw
    ends: Vector  # float64 (classes): out-edges, by which drawn edges lead to a node
    types: npt.NDArray[np.int64]  # int64 (classes): the type of the nodes
    is_seed: npt.NDArray[np.bool_]  # bool (classes): True for node types that have seeds
    limited: Mapping[int, Vector]  # by fanout, as `degree`: mean of the edges that a hop draws for a node

    def drawn(self, fanout: int) -> Vector:
        """Return the edges that a hop draws for a node of each class, as `degree`. -1 draws all edges."""
        if fanout < 0:
            return self.degree
        return self.limited[fanout] if self.limited else np.minimum(self.degree, fanout)

    def sums(self, by_class: Vector) -> Vector:
        """Return the sum over the classes of each node type: float64 (node types)."""
        return np.bincount(self.types, by_class, minlength=len(self.degree)).astype(np.float64)

    @classmethod
    def grown(cls, nodes: int, mean_degree: float) -> Degrees:
        """Make the classes of a graph that grew over time, with as many out-edges as in-edges per node.

        The graph has one node type. Degrees follow a Lomax distribution with tail exponent 2.3, and none is
        above the number of nodes.
        """
        rank = np.logspace(0, -math.log10(nodes), _CLASSES + 1)
        share = rank[:-1] - rank[1:]
        share[-1] += rank[-1]
        degree = np.sqrt(rank[:-1] * rank[1:]) ** (-1 / _TAIL) - 1
        for _ in range(8):  # the upper bound lowers the mean, so repeat the scaling
            degree = degree * (mean_degree / max(float(share @ degree), 1e-300))
            degree = np.minimum(degree, nodes)
        only = np.zeros(_CLASSES, dtype=np.int64)
        return cls(share, degree[None], degree, only, only == 0, {})
