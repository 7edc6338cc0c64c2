"""Edges of sparse matrices."""

import numpy as np

from khop.importing.sets.sparse_edges import csr_edges, distinct_edges, undirected_edges


def test_rows_duplicates_and_directions() -> None:
    sources, destinations = csr_edges(np.array([0, 2, 2, 4]), np.array([1, 2, 0, 0]))
    assert (sources.tolist(), destinations.tolist()) == ([0, 0, 2, 2], [1, 2, 0, 0])
    once = distinct_edges(sources, destinations, 3)
    assert list(zip(*(ends.tolist() for ends in once), strict=True)) == [(0, 1), (0, 2), (2, 0)]
    both = undirected_edges(np.array([0, 1]), np.array([1, 1]), 3)
    assert list(zip(*(ends.tolist() for ends in both), strict=True)) == [(0, 1), (1, 0)]
