"""The nodes of a batch in the making: global id to local id, per node type."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from khop.graph.store import GraphStore
from khop.kernels.node_index import NodeIndex
from khop.schema import NodeType


class NodeSet:
    """Nodes by type, numbered in first-seen order. Not thread-safe: borrow one from a `NodeSetPool`."""

    def __init__(self, num_nodes: Mapping[NodeType, int]) -> None:
        self._indexes = {node_type: NodeIndex(count) for node_type, count in num_nodes.items()}

    def insert(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """int32 local ids of global ids; the new ones are numbered on."""
        return self._indexes[node_type].insert(ids)

    def counts(self) -> dict[NodeType, int]:
        """Nodes so far."""
        return {node_type: len(index) for node_type, index in self._indexes.items()}

    def nodes(self, start: Mapping[NodeType, int]) -> dict[NodeType, Tensor]:
        """int64 global ids, in local order from `start` on."""
        return {node_type: index.nodes(start[node_type]) for node_type, index in self._indexes.items()}

    def clear(self) -> None:
        """Forget all nodes; the memory stays."""
        for index in self._indexes.values():
            index.clear()


class NodeSetPool:
    """As many node sets as there were ever users at once, so that a batch allocates none."""

    def __init__(self, graph: GraphStore) -> None:
        self._num_nodes = {node_type: graph.num_nodes(node_type) for node_type in graph.schema.node_types}
        self._idle: deque[NodeSet] = deque()

    def __getstate__(self) -> dict[str, object]:
        """A sampler goes to another process without its tables."""
        return {**self.__dict__, "_idle": deque()}

    @contextmanager
    def lend(self) -> Iterator[NodeSet]:
        """An empty set for one user. It goes back to the pool also when the user fails."""
        try:
            node_set = self._idle.pop()
        except IndexError:
            node_set = NodeSet(self._num_nodes)
        try:
            yield node_set
        finally:
            node_set.clear()
            self._idle.append(node_set)


def check_ids(what: str, ids: Tensor, num_nodes: int) -> None:
    """ValueError unless `ids` is a list of node ids, each from 0 to `num_nodes` - 1."""
    if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
        raise ValueError(
            f"{what}: {ids.dtype} of shape {tuple(ids.shape)}; give a 1-D int64 tensor of node ids"
        )
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= num_nodes:
        stranger = low if low < 0 else high
        raise ValueError(f"{what}: there is no node {stranger}; ids go from 0 to {num_nodes - 1}")
