"""The nodes of a batch in the making: global id to local id, per node type."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from khop.draw import Frontier, NeighborsByType
from khop.graph.store import GraphStore
from khop.kernels.node_index import NodeIndex, insert_all
from khop.sampling.sampler import Seeds
from khop.schema import EdgeType, NodeType


class Reached(Protocol):
    """What the hop loop fills: the nodes of a batch, numbered in first-seen order."""

    def plant(self, seeds: Seeds) -> dict[NodeType, Tensor]:
        """Take the seeds into an empty set; the local ids, int64, of the seeds."""
        ...

    def frontier(self, start: Mapping[NodeType, int]) -> dict[NodeType, Frontier]:
        """What to expand: the nodes in local order from `start` on."""
        ...

    def reach(self, found: NeighborsByType) -> dict[EdgeType, Tensor]:
        """Take what the last frontier drew, edge type after edge type; int32 local ids."""
        ...

    def counts(self) -> dict[NodeType, int]:
        """Nodes so far."""
        ...

    def nodes(self) -> dict[NodeType, Tensor]:
        """int64 global ids, in local order."""
        ...

    def trees(self) -> dict[NodeType, Tensor] | None:
        """int64, the number of the seed whose tree a node is in; None where trees are not disjoint."""
        ...

    def clear(self) -> None:
        """Forget all nodes."""
        ...


Set = TypeVar("Set", bound=Reached)


class NodeSet:
    """Nodes by type, numbered in first-seen order. Not thread-safe: borrow one from a `NodeSetPool`."""

    def __init__(self, num_nodes: Mapping[NodeType, int]) -> None:
        self._indexes = {node_type: NodeIndex(count) for node_type, count in num_nodes.items()}

    def plant(self, seeds: Seeds) -> dict[NodeType, Tensor]:
        """Take the seeds; their local ids, int64. Duplicates share one."""
        return {node_type: self.insert(node_type, ids).long() for node_type, ids in seeds.nodes.items()}

    def frontier(self, start: Mapping[NodeType, int]) -> dict[NodeType, Frontier]:
        """The nodes in local order from `start` on."""
        return {t: Frontier(index.nodes(start[t])) for t, index in self._indexes.items()}

    def reach(self, found: NeighborsByType) -> dict[EdgeType, Tensor]:
        """int32 local ids of what a hop drew."""
        local = insert_all([(self._indexes[t[0]], of_type.nodes) for t, of_type in found.items()])
        return dict(zip(found, local, strict=True))

    def insert(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """int32 local ids of global ids; the new ones are numbered on."""
        return self._indexes[node_type].insert(ids)

    def index(self, node_type: NodeType) -> NodeIndex:
        """Where a type's nodes are looked up."""
        return self._indexes[node_type]

    def counts(self) -> dict[NodeType, int]:
        """Nodes so far."""
        return {node_type: len(index) for node_type, index in self._indexes.items()}

    def nodes(self) -> dict[NodeType, Tensor]:
        """int64 global ids, in local order."""
        return {node_type: index.nodes() for node_type, index in self._indexes.items()}

    def trees(self) -> None:
        """None: all seeds share one set of nodes."""

    def clear(self) -> None:
        """Forget all nodes; the memory stays."""
        for index in self._indexes.values():
            index.clear()


class NodeSetPool(Generic[Set]):
    """As many sets as there were ever users at once, so that a batch allocates none."""

    def __init__(self, graph: GraphStore, make: Callable[[Mapping[NodeType, int]], Set]) -> None:
        self._make = make
        self._num_nodes = {node_type: graph.num_nodes(node_type) for node_type in graph.schema.node_types}
        self._idle: deque[Set] = deque()

    def __getstate__(self) -> dict[str, object]:
        """A sampler goes to another process without its tables."""
        return {**self.__dict__, "_idle": deque()}

    @contextmanager
    def lend(self) -> Iterator[Set]:
        """An empty set for one user. It goes back to the pool also when the user fails."""
        try:
            node_set = self._idle.pop()
        except IndexError:
            node_set = self._make(self._num_nodes)
        try:
            yield node_set
        finally:
            node_set.clear()
            self._idle.append(node_set)


def check_ids(what: str, ids: Tensor, num_nodes: int) -> None:
    """ValueError unless `ids` is a list of node ids, each from 0 to `num_nodes` - 1."""
    if not isinstance(ids, Tensor):
        raise ValueError(f"{what}: a {type(ids).__name__}; give a 1-D int64 tensor of node ids")
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
