"""The degrees of a graph that need not exist yet."""

from __future__ import annotations

import pytest

from khop.run.planning.degrees import Degrees
from khop.run.planning.workload import GraphSize

PRODUCTS = GraphSize(2_449_029, 122_900_000, 400)


def test_degrees_have_the_mean_of_the_graph() -> None:
    degrees = Degrees.grown(PRODUCTS.nodes, PRODUCTS.mean_degree)
    assert float(degrees.share.sum()) == pytest.approx(1)
    assert float(degrees.share @ degrees.degree[0]) == pytest.approx(PRODUCTS.mean_degree, rel=1e-6)
    assert float(Degrees.grown(10, 8.0).degree.max()) <= 10
