"""Selection of the edges with a source in a batch."""

from __future__ import annotations

from torch import Tensor

import khop._core as _core
from khop.draw import Neighbors
from khop.kernels.node_index import NodeIndex


def known_edges(index: NodeIndex, found: Neighbors) -> tuple[Tensor, Tensor, Tensor]:
    """Select the edges from nodes of `index`: offsets int64, sources as int32 local ids, and edge ids int64.

    Rows and the order within them are kept. `found` must have edge ids. Runs without the GIL.
    """
    if found.edges is None or found.edges.numel() != found.nodes.numel():
        raise ValueError(f"{found.nodes.numel()} edges without an edge id each: sample with edge_ids")
    return _core.known_edges(
        index.core, found.offsets.contiguous(), found.nodes.contiguous(), found.edges.contiguous()
    )
