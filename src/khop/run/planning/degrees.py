"""Nodes grouped by degree: counted in a graph, or typical of large graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_TAIL = 2.3
_CLASSES = 400


@dataclass(frozen=True, eq=False)
class Degrees:
    """Classes of nodes with equal degrees."""

    share: Vector  # float64 (classes): share of all nodes
    degree: Vector  # float64 (classes): in-edges, from which hops draw
    ends: Vector  # float64 (classes): out-edges, by which drawn edges lead to a node

    @classmethod
    def grown(cls, nodes: int, mean_degree: float) -> Degrees:
        """Make the classes of a graph that grew over time, with as many out-edges as in-edges per node.

        Degrees follow a Lomax distribution with tail exponent 2.3, and none is above the number of nodes.
        """
        rank = np.logspace(0, -math.log10(nodes), _CLASSES + 1)
        share = rank[:-1] - rank[1:]
        share[-1] += rank[-1]
        degree = np.sqrt(rank[:-1] * rank[1:]) ** (-1 / _TAIL) - 1
        for _ in range(8):  # the upper bound lowers the mean, so repeat the scaling
            degree = degree * (mean_degree / max(float(share @ degree), 1e-300))
            degree = np.minimum(degree, nodes)
        return cls(share, degree, degree)
