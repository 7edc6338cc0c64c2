"""Sparse matrices become graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import khop

EDGE = ("node", "to", "node")


@pytest.mark.parametrize("form", ["csr_array", "csc_array", "coo_array", "csr_matrix", "lil_array"])
def test_rows_are_sources(form: str, tmp_path: Path) -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0], [3, 0, 0.5]])
    graph = khop.graph_from_scipy(getattr(sp, form)(dense))
    csc, weights = graph.csc(EDGE), graph.columns[EDGE]["weight"]
    found = {
        (s, d): w
        for s, d, w in zip(csc.indices.tolist(), csc.destinations().tolist(), weights.tolist(), strict=True)
    }
    assert found == {(0, 1): 2, (2, 0): 3, (2, 2): 0.5}
    graph.save(tmp_path / "g")
    assert khop.open_graph(tmp_path / "g").num_edges(EDGE) == 3


def test_several_matrices_share_node_types() -> None:
    buys, likes = sp.csr_array(np.eye(2, 3)), sp.csr_array(np.ones((2, 3)))
    graph = khop.graph_from_scipy({"user buys item": buys, ("user", "likes", "item"): likes})
    assert (graph.num_nodes("user"), graph.num_nodes("item")) == (2, 3)
    assert graph.num_edges(("user", "likes", "item")) == 6


def test_other_objects_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be a sparse matrix of SciPy"):
        khop.graph_from_scipy(np.eye(3))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), but there are 2 'node' nodes"):
        khop.graph_from_scipy(sp.csr_array(np.ones((2, 3))))
    with pytest.raises(ValueError, match="must be finite numbers"):
        khop.graph_from_scipy(sp.csr_array(np.array([[np.nan]])))
