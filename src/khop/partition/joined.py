"""The edges of all parts, joined into a graph in one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.csc_graph import CscGraph
from khop.graph.derived import Derived
from khop.kernels.csc import Csc
from khop.kernels.memory import expect_random_access
from khop.partition.parts_folder import PartsFolder, check_whole
from khop.schema import EdgeType


def joined_graph(folder: PartsFolder) -> CscGraph:
    """Join all parts into the whole graph, with global ids.

    The joined edges are stored next to the parts, and mapped.
    Raises ValueError if a part is not held.
    """
    check_whole(folder, "the graph in one piece")
    kept = Derived(folder.path, folder.fingerprint, folder.arrays)
    node_types = folder.schema.node_types
    return CscGraph(
        folder.schema,
        {node_type: folder.num_nodes(node_type) for node_type in node_types},
        {edge_type: _joined(folder, edge_type, kept) for edge_type in folder.schema.edge_types},
        {node_type: folder.original_ids(node_type) for node_type in node_types},
        folder.columns(),
        bounds=folder.book.offsets,
    )


def _joined(folder: PartsFolder, edge_type: EdgeType, kept: Derived) -> Csc:
    """Join the rows of part 0, then the rows of part 1, and so on; row offsets continue across parts."""
    pieces = [part.csc(edge_type) for part in folder.parts]
    first_edges = folder.book.first_edges(edge_type)

    def offsets() -> Tensor:
        for piece in pieces:
            piece.check_rows()
        last = torch.tensor(first_edges[-1:])
        starts = (start for start, _ in pairwise(first_edges))
        return torch.cat([*(p.indptr[:-1] + start for p, start in zip(pieces, starts, strict=True)), last])

    def kept_array(name: str, count: int, dtype: torch.dtype, make: Callable[[], Sequence[Tensor]]) -> Tensor:
        file = layout.edge_array(edge_type, name).removesuffix(".npy")
        sources = [f"{part.path.name}/{layout.edge_array(edge_type, name)}" for part in folder.parts]
        return kept.joined(file, count, make, sources, str(dtype).removeprefix("torch."))

    indices = [piece.indices for piece in pieces]
    joined = Csc(
        kept_array("indptr", folder.num_nodes(edge_type[2]) + 1, torch.int64, lambda: [offsets()]),
        kept_array("indices", first_edges[-1], indices[0].dtype, lambda: indices),
    )
    expect_random_access(joined.indptr)
    expect_random_access(joined.indices)
    return joined
