"""Nodes of disjoint trees, as (tree, node) pairs, mapped to consecutive local ids in first-seen order."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core


class TreeIndex:
    """The nodes of one batch of disjoint trees: a node may be in several trees, once in each.

    Not thread-safe: use one per worker. A warm index allocates nothing. Its table takes 16 to 32 bytes per
    pair of the largest batch so far; 4 bytes per possible pair if there are at most 2^22 of them.
    """

    def __init__(self, num_nodes: int) -> None:
        if num_nodes < 0:
            raise ValueError(f"num_nodes {num_nodes}: a graph cannot have fewer than 0 nodes")
        self._core = _core.TreeIndex(num_nodes)

    def reset(self, num_trees: int) -> None:
        """Remove all pairs. From now on trees are numbered from 0 to `num_trees` - 1."""
        self._core.reset(num_trees)

    def insert(self, ids: Tensor, offsets: Tensor, trees: Tensor) -> Tensor:
        """Return the local id, int32, of each id (int32 or int64). New pairs get the next numbers.

        Ids between `offsets[i]` and `offsets[i + 1]` are in tree `trees[i]`. ValueError if an id or a tree
        is out of range; then nothing is inserted.
        """
        if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.device.type != "cpu":
            given = f"ids are {ids.dtype} {tuple(ids.shape)} on {ids.device}"
            raise ValueError(f"{given}: must be int32 or int64 (n) on the cpu")
        return self._core.insert(ids.contiguous(), offsets.contiguous(), trees.contiguous())

    def pairs(self, start: int = 0) -> tuple[Tensor, Tensor]:
        """Return the nodes and the trees, int64 both, of local ids `start` and above, as copies."""
        return self._core.pairs(start)

    def __len__(self) -> int:
        return len(self._core)
