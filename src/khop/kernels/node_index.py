"""Global node ids of a batch, mapped to consecutive local ids in first-seen order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import khop._core as _core


class NodeIndex:
    """The nodes of one batch. Clear it and reuse it for the next batch: a warm index allocates nothing.

    Not thread-safe: use one per worker. Its table takes 4 bytes per node of a graph of up to 2^22 nodes. For
    larger graphs it takes 16 to 32 bytes per node of the largest batch so far.
    """

    def __init__(self, num_nodes: int) -> None:
        if num_nodes < 0:
            raise ValueError(f"num_nodes {num_nodes}: a graph cannot have fewer than 0 nodes")
        self.core = _core.NodeIndex(num_nodes)  # for kernels that look up nodes

    def insert(self, ids: Tensor) -> Tensor:
        """Return the local id, int32, of each id (int32 or int64). New ids get the next local ids.

        ValueError if an id is not a node of the graph; then nothing is inserted.
        """
        return insert_all([(self, ids)])[0]

    def nodes(self, start: int = 0) -> Tensor:
        """Return the global ids, int64, of local ids `start` and above, as a copy."""
        return self.core.nodes(start)

    def clear(self) -> None:
        """Remove all nodes, in constant time."""
        self.core.clear()

    def __len__(self) -> int:
        return len(self.core)


def insert_all(lookups: Sequence[tuple[NodeIndex, Tensor]]) -> Sequence[Tensor]:
    """Call `index.insert(ids)` for each pair in turn, in one call. The results are views of one tensor."""
    for _, ids in lookups:
        if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.device.type != "cpu":
            given = f"ids are {ids.dtype} {tuple(ids.shape)} on {ids.device}"
            raise ValueError(f"{given}: must be int32 or int64 (n) on the cpu")
    local = _core.insert([(index.core, ids.contiguous()) for index, ids in lookups])
    return local.split_with_sizes([ids.numel() for _, ids in lookups])
