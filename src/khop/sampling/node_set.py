"""Nodes of a batch during sampling: local ids by node type, within the batch or within each disjoint tree."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from khop.draw import Frontier, Neighbors, NeighborsByType
from khop.graph.store import GraphStore
from khop.kernels.memory import pooled_on
from khop.kernels.node_index import NodeIndex, insert_all, node_index, tree_index
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType

CPU = torch.device("cpu")
Set = TypeVar("Set", bound="NodeSet | TreeSet | PathSet")


class NodeSet:
    """Nodes by type, numbered in first-seen order. Not thread-safe: borrow one from a `NodeSetPool`."""

    def __init__(self, num_nodes: Mapping[NodeType, int], device: torch.device = CPU) -> None:
        self._indexes = {node_type: node_index(count, device) for node_type, count in num_nodes.items()}
        self._device = device

    def plant(self, seeds: Seeds) -> dict[NodeType, Tensor]:
        """Insert the seeds; return their local ids, int64. Duplicates share one."""
        return {t: self.insert(t, ids.to(self._device)).long() for t, ids in seeds.nodes.items()}

    def frontier(self, start: Mapping[NodeType, int]) -> dict[NodeType, Frontier]:
        """Return the nodes in local order from `start` on."""
        return {t: Frontier(index.nodes(start[t])) for t, index in self._indexes.items()}

    def reach(self, found: NeighborsByType) -> dict[EdgeType, Tensor]:
        """Insert the nodes that a hop drew; return int32 local ids."""
        local = insert_all([(self._indexes[t[0]], of_type.nodes) for t, of_type in found.items()])
        return dict(zip(found, local, strict=True))

    def insert(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Insert global ids; return int32 local ids. New nodes get the next numbers."""
        return self._indexes[node_type].insert(ids)

    def index(self, node_type: NodeType) -> NodeIndex:
        """Return the lookup table of a type's nodes; ValueError if they are on a device."""
        index = self._indexes[node_type]
        if not isinstance(index, NodeIndex):
            raise ValueError(
                f"edges among nodes on {self._device} are only supported on the CPU; sample there, or give "
                "output=directional"
            )
        return index

    def counts(self) -> dict[NodeType, int]:
        """Return the number of nodes so far."""
        return {node_type: len(index) for node_type, index in self._indexes.items()}

    def nodes(self) -> dict[NodeType, Tensor]:
        """Return int64 global ids, in local order."""
        return {node_type: index.nodes() for node_type, index in self._indexes.items()}

    def nodes_and_trees(self) -> tuple[dict[NodeType, Tensor], None]:
        """Return int64 global ids in local order, and None: all seeds share one set of nodes."""
        return self.nodes(), None

    def clear(self) -> None:
        """Remove all nodes; the memory stays allocated."""
        for index in self._indexes.values():
            index.clear()


class NodeSetPool(Generic[Set]):
    """A pool with as many sets as there were concurrent users, so that a batch allocates none."""

    def __init__(
        self,
        graph: GraphStore,
        make: Callable[[Mapping[NodeType, int], torch.device], Set],
        device: torch.device | None = None,
    ) -> None:
        self._make = make
        self._device = graph.frontier_device if device is None else device
        self.num_nodes = {node_type: graph.num_nodes(node_type) for node_type in graph.schema.node_types}
        self._idle: deque[Set] = deque()

    def __getstate__(self) -> dict[str, object]:
        """Leave the tables out when a sampler is pickled for another process."""
        return {**self.__dict__, "_idle": deque()}

    @contextmanager
    def lend(self) -> Iterator[Set]:
        """Lend an empty set to one user. It returns to the pool also when the user fails."""
        try:
            node_set = self._idle.pop()
        except IndexError:
            node_set = self._make(self.num_nodes, self._device)
        try:
            yield node_set
        finally:
            node_set.clear()
            self._idle.append(node_set)


class TreeSet:
    """(tree, node) pairs by node type, numbered in first-seen order. Not thread-safe: see `NodeSetPool`.

    Every seed is the root of a separate tree. Trees are numbered in the order of the seeds, type after type.
    If seeds are in groups, a group has one tree, with all its seeds.
    """

    def __init__(self, num_nodes: Mapping[NodeType, int], device: torch.device = CPU) -> None:
        self._indexes = {node_type: tree_index(count, device) for node_type, count in num_nodes.items()}
        self._device = device
        self._positions = torch.empty(0, dtype=torch.int64)  # of each tree's seed in the epoch's global order
        self._until: Tensor | None = None  # the time limit of each tree
        self._expanded: dict[NodeType, Tensor] = {}  # the trees of the last frontier's rows

    def plant(self, seeds: Seeds) -> dict[NodeType, Tensor]:
        """Start a tree for each seed, or group, of an empty set; return the seeds' local ids, int64."""
        groups = seeds.groups
        count = seeds.count if groups is None else groups.count
        for index in self._indexes.values():
            index.reset(count)
        positions = _joined(seeds.positions) if groups is None else groups.positions
        self._positions = positions.to(self._device)
        self._until = None if seeds.times is None else _joined(seeds.times).to(self._device)
        roots, planted = {}, 0
        for node_type, ids in seeds.nodes.items():
            trees = torch.arange(planted, planted + ids.numel(), device=self._device)
            if groups is not None:
                trees = (seeds.positions[node_type] - groups.first).to(self._device)
            offsets = torch.arange(ids.numel() + 1, device=self._device)
            roots[node_type] = self._indexes[node_type].insert(ids.to(self._device), offsets, trees).long()
            planted += ids.numel()
        return roots

    def plant_groups(self, members: Mapping[NodeType, tuple[Tensor, Tensor]], num_groups: int) -> None:
        """Insert all nodes of groups into an empty set, a tree per group.

        `members` has by type the nodes, int64 (n), unique within a group, and the bounds of the groups, int64
        (groups + 1). Local ids are their positions.
        """
        for node_type, (nodes, offsets) in members.items():
            self._indexes[node_type].reset(num_groups)
            self._indexes[node_type].insert(nodes, offsets, torch.arange(num_groups))

    def local_ids(self, node_type: NodeType, found: Neighbors, trees: Tensor) -> Tensor:
        """Return int32 (edges): the local id of each neighbor in its row's tree, int64 (rows).

        Neighbors that are not in the set yet get the next numbers.
        """
        return self._indexes[node_type].insert(found.nodes, found.offsets, trees)

    def frontier(self, start: Mapping[NodeType, int]) -> dict[NodeType, Frontier]:
        """Return the nodes in local order from `start` on, with the key and the time limit of their tree."""
        frontier = {}
        for node_type, index in self._indexes.items():
            nodes, trees = index.pairs(start[node_type])
            self._expanded[node_type] = trees
            until = None if self._until is None else _of_trees(self._until, trees)
            frontier[node_type] = Frontier(nodes, until, _of_trees(self._positions, trees))
        return frontier

    def reach(self, found: NeighborsByType) -> dict[EdgeType, Tensor]:
        """Insert the last frontier's drawn nodes, each into its row's tree; return int32 local ids."""
        return {
            t: self._indexes[t[0]].insert(of_type.nodes, of_type.offsets, self._expanded[t[2]])
            for t, of_type in found.items()
        }

    def counts(self) -> dict[NodeType, int]:
        """Return the number of pairs so far."""
        return {node_type: len(index) for node_type, index in self._indexes.items()}

    def nodes_and_trees(self) -> tuple[dict[NodeType, Tensor], dict[NodeType, Tensor]]:
        """Return int64 global ids in local order, and the tree of each node: the number of its seed."""
        pairs = {node_type: index.pairs() for node_type, index in self._indexes.items()}
        return {t: nodes for t, (nodes, _) in pairs.items()}, {t: trees for t, (_, trees) in pairs.items()}

    def clear(self) -> None:
        """Remove all pairs; the memory stays allocated."""
        for index in self._indexes.values():
            index.reset(0)


class PathSet:
    """Nodes at the ends of drawn edges by node type: each edge leads to a row, also to the same node.

    Every seed is the root of a tree, as in `TreeSet`. The time of the edge that led to a row limits the edges
    of the row, so that rows of one node in one tree have different edges.
    """

    def __init__(self, num_nodes: Mapping[NodeType, int], device: torch.device = CPU) -> None:
        self._device = device
        self._none = torch.empty(0, dtype=torch.int64, device=device)
        self._positions = self._none  # of each tree's seed in the epoch's global order
        self._rows = {node_type: _PathRows(self._none, self._none, self._none) for node_type in num_nodes}
        self._expanded: dict[NodeType, _PathRows] = {}  # the rows of the last frontier

    def plant(self, seeds: Seeds) -> dict[NodeType, Tensor]:
        """Start a tree for each seed of an empty set; return the seeds' local ids, int64."""
        assert seeds.times is not None  # the rule reads them
        self._positions = _joined(seeds.positions).to(self._device)
        roots, planted = {}, 0
        for node_type, ids in seeds.nodes.items():
            trees = torch.arange(planted, planted + ids.numel(), device=self._device)
            times = seeds.times[node_type].to(self._device)
            self._rows[node_type] = _PathRows(ids.to(self._device), trees, times)
            roots[node_type] = torch.arange(ids.numel(), device=self._device)
            planted += ids.numel()
        return roots

    def frontier(self, start: Mapping[NodeType, int]) -> dict[NodeType, Frontier]:
        """Return the rows from `start` on, with the key of their tree and the limit of their edge."""
        self._expanded = {t: rows.since(start[t]) for t, rows in self._rows.items()}
        return {
            t: Frontier(rows.nodes, rows.until, _of_trees(self._positions, rows.trees))
            for t, rows in self._expanded.items()
        }

    def reach(self, found: NeighborsByType) -> dict[EdgeType, Tensor]:
        """Add a row for each edge that the last frontier drew; return int32 local ids."""
        local, added = {}, {t: [rows] for t, rows in self._rows.items()}
        counts = self.counts()
        for edge_type, of_type in found.items():
            assert of_type.times is not None  # the rule has times
            source, count = edge_type[0], of_type.nodes.numel()
            trees = of_type.by_row(self._expanded[edge_type[2]].trees)
            added[source].append(_PathRows(of_type.nodes.long(), trees, of_type.times))
            end = counts[source] + count
            if end >= 1 << 31:
                raise ValueError(f"{end:,} rows of {source!r} in a batch: use fewer seeds or smaller fanouts")
            local[edge_type] = torch.arange(counts[source], end, dtype=torch.int32, device=self._device)
            counts[source] = end
        self._rows = {t: _PathRows.joined(pieces) for t, pieces in added.items()}
        return local

    def counts(self) -> dict[NodeType, int]:
        """Return the number of rows so far."""
        return {node_type: rows.nodes.numel() for node_type, rows in self._rows.items()}

    def nodes_and_trees(self) -> tuple[dict[NodeType, Tensor], dict[NodeType, Tensor]]:
        """Return int64 global ids in local order, and the tree of each row: the number of its seed."""
        return {t: r.nodes for t, r in self._rows.items()}, {t: r.trees for t, r in self._rows.items()}

    def clear(self) -> None:
        """Remove all rows."""
        self._rows = {t: _PathRows(self._none, self._none, self._none) for t in self._rows}


@dataclass(frozen=True)
class _PathRows:
    """Rows of one node type: their nodes, trees and time limits, int64 (rows) each."""

    nodes: Tensor
    trees: Tensor
    until: Tensor

    @classmethod
    def joined(cls, pieces: Sequence[_PathRows]) -> _PathRows:
        """Return rows one piece after another."""
        if len(pieces) == 1:
            return pieces[0]
        columns = zip(*((rows.nodes, rows.trees, rows.until) for rows in pieces), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def since(self, start: int) -> _PathRows:
        """Return the rows from a number on, as views."""
        return _PathRows(self.nodes[start:], self.trees[start:], self.until[start:])


def _of_trees(values: Tensor, trees: Tensor) -> Tensor:
    # Pooled memory: the page faults of a new tensor cost more than the copy.
    return torch.index_select(values, 0, trees, out=pooled_on(trees.device, tuple(trees.shape), values.dtype))


def _joined(by_type: Mapping[NodeType, Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.int64), *by_type.values()])
