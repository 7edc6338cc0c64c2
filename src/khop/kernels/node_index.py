"""Mapping of global node ids to consecutive local ids in first-seen order.

In disjoint trees, (tree, node) pairs are mapped. The version in torch runs on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.choice import Engine, engine


class FirstSeen:
    """Keys and their numbers 0, 1, 2, ... Each insertion synchronizes to read the number of distinct keys."""

    def __init__(self, device: torch.device) -> None:
        self._keys = torch.empty(0, dtype=torch.int64, device=device)

    def insert(self, keys: Tensor) -> Tensor:
        """Return the number, int32, of each key, int64 (n). New keys get the next numbers."""
        known = self._keys.numel()
        every = torch.cat([self._keys, keys])
        distinct, places = torch.unique(every, return_inverse=True)
        at = torch.arange(every.numel(), device=every.device)
        first = torch.full_like(distinct, every.numel()).scatter_reduce(0, places, at, "amin")
        order = first.argsort()
        number = torch.empty_like(order)
        number[order] = torch.arange(order.numel(), device=every.device)
        self._keys = every[first[order]]
        return number[places[known:]].int()

    def keys(self, start: int = 0) -> Tensor:
        """Return the keys, int64, of numbers `start` and above, as a copy."""
        return self._keys[start:].clone()

    def clear(self) -> None:
        """Remove all keys."""
        self._keys = self._keys[:0]

    def __len__(self) -> int:
        return self._keys.numel()


class LocalIds(Protocol):
    """Protocol of classes that assign local ids to the nodes of a batch; see `node_index`."""

    def insert(self, ids: Tensor) -> Tensor:
        """Return the local id, int32, of each id (int32 or int64). New ids get the next local ids."""
        ...

    def nodes(self, start: int = 0) -> Tensor:
        """Return the global ids, int64, of local ids `start` and above, as a copy."""
        ...

    def clear(self) -> None:
        """Remove all nodes."""
        ...

    def __len__(self) -> int: ...


def node_index(num_nodes: int, device: torch.device) -> LocalIds:
    """Return an empty index of nodes for ids on a device."""
    by = engine(device)
    if by is Engine.NATIVE:
        return NodeIndex(num_nodes)
    if by is Engine.TORCH:
        return TorchNodeIndex(device)
    from khop.kernels.triton.node_index import DeviceNodeIndex

    return DeviceNodeIndex(num_nodes, device)


class NodeIndex:
    """The nodes of one batch. Clear and reuse it for the next batch to avoid allocations.

    Not thread-safe: use one per worker. Its table takes 4 bytes per node of a graph of up to 2^22 nodes. For
    larger graphs it takes 16 to 32 bytes per node of the largest batch so far.
    """

    def __init__(self, num_nodes: int) -> None:
        if num_nodes < 0:
            raise ValueError(f"num_nodes {num_nodes}: must be at least 0")
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


class TorchNodeIndex:
    """The nodes of one batch on any device, in torch; see LocalIds."""

    def __init__(self, device: torch.device) -> None:
        self._seen = FirstSeen(device)

    def insert(self, ids: Tensor) -> Tensor:
        """Return the local id, int32, of each id (int32 or int64). New ids get the next local ids."""
        return self._seen.insert(ids.long())

    def nodes(self, start: int = 0) -> Tensor:
        """Return the global ids, int64, of local ids `start` and above, as a copy."""
        return self._seen.keys(start)

    def clear(self) -> None:
        """Remove all nodes."""
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._seen)


def insert_all(lookups: Sequence[tuple[LocalIds, Tensor]]) -> Sequence[Tensor]:
    """Call `index.insert(ids)` for each pair in order; on the CPU in one call, with views of one tensor."""
    native = [(index, ids) for index, ids in lookups if isinstance(index, NodeIndex)]
    if len(native) < len(lookups):
        return [index.insert(ids) for index, ids in lookups]
    for _, ids in native:
        if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.device.type != "cpu":
            given = f"ids are {ids.dtype} {tuple(ids.shape)} on {ids.device}"
            raise ValueError(f"{given}: must be int32 or int64 (n) on the cpu")
    local = _core.insert([(index.core, ids.contiguous()) for index, ids in native])
    return local.split_with_sizes([ids.numel() for _, ids in lookups])


def tree_index(num_nodes: int, device: torch.device) -> TreeIndex | TorchTreeIndex:
    """Return an empty index of pairs for ids on a device."""
    if engine(device) is Engine.NATIVE:
        return TreeIndex(num_nodes)
    return TorchTreeIndex(num_nodes, device)


class TorchTreeIndex:
    """The nodes of one batch of disjoint trees on any device, in torch; see TreeIndex."""

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

    Not thread-safe: use one per worker. Reset and reuse it to avoid allocations. Its table takes 16 to 32
    bytes per pair of the largest batch so far; 4 bytes per possible pair if there are at most 2^22 of them.
    """

    def __init__(self, num_nodes: int) -> None:
        if num_nodes < 0:
            raise ValueError(f"num_nodes {num_nodes}: must be at least 0")
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
