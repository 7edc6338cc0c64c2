"""Nodes of disjoint trees, as (tree, node) pairs, mapped to consecutive local ids in first-seen order."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.choice import Engine, engine
from khop.kernels.first_seen import FirstSeen


class TreeIds(Protocol):
    """Implementers number the pairs of a tree and a node of one batch; see `tree_index`."""

    def reset(self, num_trees: int) -> None:
        """Remove all pairs. From now on trees are numbered from 0 to `num_trees` - 1."""
        ...

    def insert(self, ids: Tensor, offsets: Tensor, trees: Tensor) -> Tensor:
        """Return the local id, int32, of each id in its row's tree; see TreeIndex."""
        ...

    def pairs(self, start: int = 0) -> tuple[Tensor, Tensor]:
        """Return the nodes and the trees, int64 both, of local ids `start` and above, as copies."""
        ...

    def __len__(self) -> int: ...


def tree_index(num_nodes: int, device: torch.device) -> TreeIds:
    """Return an empty index of pairs for ids on a device."""
    if engine(device) is Engine.NATIVE:
        return TreeIndex(num_nodes)
    return TorchTreeIndex(num_nodes, device)


class TorchTreeIndex:
    """The nodes of one batch of disjoint trees on any device, in torch; see TreeIds."""

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self._num_nodes = max(num_nodes, 1)
        self._seen = FirstSeen(device)

    def reset(self, num_trees: int) -> None:
        """Remove all pairs; ValueError if pairs of tree and node exceed 64 bits."""
        if num_trees * self._num_nodes >= 1 << 63:
            raise ValueError(
                f"{num_trees:,} trees of {self._num_nodes:,} nodes: pairs exceed 64 bits; use fewer seeds"
            )
        self._seen.clear()

    def insert(self, ids: Tensor, offsets: Tensor, trees: Tensor) -> Tensor:
        """Return the local id, int32, of each id in its row's tree; see TreeIndex."""
        own = torch.repeat_interleave(trees, offsets.diff(), output_size=ids.numel())
        return self._seen.insert(own * self._num_nodes + ids.long())

    def pairs(self, start: int = 0) -> tuple[Tensor, Tensor]:
        """Return the nodes and the trees, int64 both, of local ids `start` and above, as copies."""
        keys = self._seen.keys(start)
        return keys % self._num_nodes, keys // self._num_nodes

    def __len__(self) -> int:
        return len(self._seen)


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
