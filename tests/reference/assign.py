"""Assigning nodes to parts in plain Python: dictionaries, and one block of nodes after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from khop.kernels.assign import InEdges, Limit, Score

NOWHERE = 65535


@dataclass
class PlainAssigner:
    """The same passes as khop.kernels.assign.Assigner, all nodes at a time."""

    first_node: Sequence[int]
    edges: Sequence[InEdges]
    limits: Sequence[Limit]
    members: Sequence[int]
    parts: int
    score: Score
    cluster_limit: int
    label: list[int] = field(init=False)
    part: list[int] = field(init=False)
    loads: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.first_node[-1]
        self.block = min(max(self.nodes // 64, 64), 4096)
        self.label = list(range(self.nodes))
        self.part = [NOWHERE] * self.nodes
        self._empty()
        self.neighbors: list[list[int]] = [[] for _ in range(self.nodes)]
        for in_edges in self.edges:
            indptr, indices = in_edges.csc.indptr.tolist(), in_edges.csc.indices.tolist()
            for row in range(in_edges.csc.num_rows):
                ends = [in_edges.first_source + end for end in indices[indptr[row] : indptr[row + 1]]]
                self.neighbors[in_edges.first_destination + row] += ends
        alpha = math.sqrt(self.parts) * sum(map(len, self.neighbors)) / 2
        alpha /= max(self.nodes, 1) * math.sqrt(max(self.nodes, 1))
        self.fennel = alpha * 1.5 * math.sqrt(max(self.nodes, 1) / self.parts)

    def cluster(self) -> None:
        for block in self._blocks():
            sizes = Counter(self.label)
            wanted = [self._candidate(node, sizes) for node in block]
            for node, label in zip(block, wanted, strict=True):
                if label != self.label[node] and sizes[label] < self.cluster_limit:
                    sizes[self.label[node]] -= 1
                    sizes[label] += 1
                    self.label[node] = label

    def place_clusters(self) -> None:
        self._empty()
        clusters: dict[int, list[int]] = {}
        for node, label in enumerate(self.label):
            clusters.setdefault(label, []).append(node)
        ordered = sorted(clusters.values(), key=lambda nodes: (-len(nodes), self.label[nodes[0]]))
        for block in _of_at_least(self.block, ordered):
            counts = [self._counts(nodes, lambda a, b: self.label[a] != self.label[b]) for nodes in block]
            for nodes, count in zip(block, counts, strict=True):
                weights = [sum(of_limit) for of_limit in zip(*map(self._weights, nodes), strict=True)]
                self._place(nodes, self._best(count, weights, None), weights)

    def stream(self) -> None:
        self._empty()
        for block in self._blocks():
            counts = [self._counts([node]) for node in block]
            for node, count in zip(block, counts, strict=True):
                weights = self._weights(node)
                self._place([node], self._best(count, weights, None), weights)

    def refine(self) -> None:
        for block in self._blocks():
            counts = [self._counts([node]) for node in block]
            for node, count in zip(block, counts, strict=True):
                weights, here = self._weights(node), self.part[node]
                self.loads[here] = [load - w for load, w in zip(self.loads[here], weights, strict=True)]
                self._place([node], self._best(count, weights, here), weights)

    def _blocks(self) -> Iterator[range]:
        for begin in range(0, self.nodes, self.block):
            yield range(begin, min(begin + self.block, self.nodes))

    def _empty(self) -> None:
        self.loads = [[0] * len(self.limits) for _ in range(self.parts)]

    def _candidate(self, node: int, sizes: Counter[int]) -> int:
        counts = Counter(self.label[neighbor] for neighbor in self.neighbors[node])
        own = self.label[node]
        better = [
            (-count, label)
            for label, count in counts.items()
            if label != own and count > counts[own] and sizes[label] < self.cluster_limit
        ]
        return min(better)[1] if better else own

    def _counts(
        self, nodes: Iterable[int], counted: Callable[[int, int], bool] = lambda a, b: True
    ) -> Counter[int]:
        return Counter(
            self.part[neighbor]
            for node in nodes
            for neighbor in self.neighbors[node]
            if self.part[neighbor] != NOWHERE and counted(node, neighbor)
        )

    def _weights(self, node: int) -> list[int]:
        node_type = max(t for t in range(len(self.first_node) - 1) if self.first_node[t] <= node)
        return [
            limit.by_type[node_type]
            * (limit.member == 0 or bool(self.members[node] & limit.member))
            * (len(self.neighbors[node]) if limit.by_degree else 1)
            for limit in self.limits
        ]

    def _best(self, counts: Counter[int], weights: list[int], here: int | None) -> int:
        fullness, room = [], []
        for loads in self.loads:
            asked = [
                (load, w, limit.capacity)
                for load, w, limit in zip(loads, weights, self.limits, strict=True)
                if w
            ]
            fullness.append(max((load / max(capacity, 1) for load, _, capacity in asked), default=0.0))
            room.append(all(load + weight <= capacity for load, weight, capacity in asked))
        with_room = [part for part in range(self.parts) if room[part]]
        if not with_room:
            return min(range(self.parts), key=lambda part: fullness[part])
        return min(
            with_room,
            key=lambda part: (-self._value(counts[part], fullness[part], part, here), fullness[part]),
        )

    def _value(self, count: int, fullness: float, part: int, here: int | None) -> float:
        if here is not None:
            return count + 0.5 * (part == here)
        return (
            count * (1 - fullness) if self.score is Score.LDG else count - self.fennel * math.sqrt(fullness)
        )

    def _place(self, nodes: Iterable[int], part: int, weights: list[int]) -> None:
        self.loads[part] = [load + w for load, w in zip(self.loads[part], weights, strict=True)]
        for node in nodes:
            self.part[node] = part


def _of_at_least(nodes: int, clusters: list[list[int]]) -> Iterator[list[list[int]]]:
    block: list[list[int]] = []
    for cluster in clusters:
        block.append(cluster)
        if sum(map(len, block)) >= nodes:
            yield block
            block = []
    if block:
        yield block
