"""Graphs in memory from sparse matrices of SciPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from khop.api.memory_graph import EDGE, MemoryEdges, memory_graph
from khop.api.open_graph import Graph
from khop.schema import EdgeType, NodeType, by_edge_type

WEIGHT = "weight"


def graph_from_scipy(matrices: Any | Mapping[EdgeType, Any] | Mapping[str, Any]) -> Graph:  # noqa: ANN401
    """Make a graph in memory of a sparse matrix, or of matrices by edge type.

    The entry in row i and column j is an edge from i to j; its value is the edge column `weight`. One matrix
    must be square, and gives the types "node" and ("node", "to", "node"). Stored zeros are edges.
    `graph.save` writes a graph folder.
    """
    by_type = by_edge_type(matrices) if isinstance(matrices, Mapping) else {EDGE: matrices}
    counts: dict[NodeType, int] = {}
    edges: dict[EdgeType, MemoryEdges] = {}
    for edge_type, matrix in by_type.items():
        if not hasattr(matrix, "tocoo") or len(getattr(matrix, "shape", ())) != 2:
            raise ValueError(
                f"matrix {matrix!r} of {edge_type}: must be a sparse matrix of SciPy, such as "
                "scipy.sparse.csr_array"
            )
        for node_type, count in zip((edge_type[0], edge_type[2]), matrix.shape, strict=True):
            if counts.setdefault(node_type, int(count)) != count:
                raise ValueError(
                    f"matrix of {edge_type} has shape {matrix.shape}, but there are {counts[node_type]:,} "
                    f"{node_type!r} nodes; give matrices of equal sizes"
                )
        edges[edge_type] = _edges(matrix.tocoo(), edge_type)
    return memory_graph(counts, edges, {})


def _edges(matrix: Any, edge_type: EdgeType) -> MemoryEdges:  # noqa: ANN401
    values = np.ascontiguousarray(matrix.data)
    if values.dtype.kind not in "iufb" or not np.isfinite(values).all():
        raise ValueError(f"matrix of {edge_type} has {values.dtype} values: must be finite numbers")
    ends = [torch.from_numpy(np.asarray(end).astype(np.int64)) for end in (matrix.row, matrix.col)]
    return MemoryEdges(ends[0], ends[1], {WEIGHT: torch.from_numpy(values.astype(np.float32))})
