"""The rows of a hop: the input of every kernel that draws in-edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.philox import WORD, mix64_reference, signed


@dataclass(frozen=True)
class HopRows:
    """The frontier of one edge type, and the keys of its rows' draws."""

    nodes: Tensor  # int64 (n), rows of the graph, duplicates allowed
    key: DrawKey
    stream: int
    original_ids: Tensor | None = None  # int64 (rows of the graph), the ids that key the draws
    tree: Tensor | None = None  # int64 (n), the position of each disjoint tree's seed
    ranges: Tensor | None = (
        None  # int64 (2 n), begin and end of each row's edges, row after row; None: all edges
    )

    def bounds(self, csc: Csc) -> tuple[Tensor, Tensor]:
        """Return begin and end of each row's edges; ValueError for a node that is not a row."""
        outside = self.nodes[(self.nodes < 0) | (self.nodes >= csc.num_rows)]
        if outside.numel():
            raise ValueError(
                f"frontier node {int(outside[0])}: not in [0, {csc.num_rows}), the rows of the graph"
            )
        if self.ranges is not None:
            return self.ranges[0::2], self.ranges[1::2]
        return csc.indptr[self.nodes], csc.indptr[self.nodes + 1]

    def keys(self) -> Tensor:
        """Return the key of each row as two words, int64 (n, 2)."""
        keys = torch.full_like(self.nodes, signed(self.key.value))
        if self.tree is not None:
            keys = mix64_reference(keys ^ mix64_reference(self.tree))
        return torch.stack([keys & WORD, (keys >> 32) & WORD], dim=1)

    def ids(self) -> Tensor:
        """Return the id in each row's counter: the original id of its node."""
        return self.nodes if self.original_ids is None else self.original_ids[self.nodes]
