"""Global node ids of a batch, mapped to consecutive local ids in first-seen order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.choice import Engine, engine
from khop.kernels.first_seen import FirstSeen


class LocalIds(Protocol):
    """Implementers number the nodes of one batch; see `node_index`."""

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
    """Call `index.insert(ids)` for each pair in turn; on the CPU in one call, with views of one tensor."""
    native = [(index, ids) for index, ids in lookups if isinstance(index, NodeIndex)]
    if len(native) < len(lookups):
        return [index.insert(ids) for index, ids in lookups]
    for _, ids in native:
        if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.device.type != "cpu":
            given = f"ids are {ids.dtype} {tuple(ids.shape)} on {ids.device}"
            raise ValueError(f"{given}: must be int32 or int64 (n) on the cpu")
    local = _core.insert([(index.core, ids.contiguous()) for index, ids in native])
    return local.split_with_sizes([ids.numel() for _, ids in lookups])
