"""Neighbors by random walks: the nodes that walks from a node visit most often (PinSAGE, PPR)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import graph_of, instance_of, real_number, seed_number, whole_number
from khop.draw import DrawKey, Purpose
from khop.graph.store import GraphStore
from khop.graph.tables import EdgeChunks, EdgeTable
from khop.kernels.philox import WORD, philox
from khop.sampling.node2vec import Node2Vec
from khop.sampling.random_walks import ENDED, check_bias, checked_path, next_step
from khop.schema import EdgeType, EdgeTypeName

_WALKS_AT_ONCE = 1 << 20
_BIASED_AT_ONCE = 1 << 15  # a step of these reads all in-edges of each walk's node


@dataclass(frozen=True)
class WalkCounts:
    """Walks from a node, and the neighbors that are kept of those that they visit.

    A walk follows the path up to `rounds` times, and stops before each round but the first with probability
    `stop`. The node at the end of each round is a visit.
    """

    walks: int = 10  # from each node
    rounds: int = 2
    stop: float = 0.5
    keep: int = 10  # neighbors per node, those with most visits; of equal ones the lowest original id

    def __post_init__(self) -> None:
        for name in ("walks", "rounds", "keep"):
            whole_number(name, getattr(self, name), 1, (1 << 31) - 1)
        if not 0 <= real_number("stop", self.stop) <= 1:
            raise ValueError(f"stop {self.stop}: must be a probability, from 0 to 1")

    @property
    def threshold(self) -> int:
        """Words of 32 bits below it stop a walk."""
        return round(self.stop * (1 << 32))


def walk_neighbors(
    graph: GraphStore,
    path: Sequence[EdgeTypeName],
    counts: WalkCounts = WalkCounts(),
    *,
    bias: Node2Vec | None = None,
    seed: int = 0,
) -> EdgeChunks:
    """Connect every node of a type with the nodes of the type that random walks from it visit most often.

    `path` leads from the node type back to it, such as ["user buys item", "item bought-by user"]: a step goes
    from the destination of an edge to its source. With it, the result has the neighbors of DGL's
    PinSAGESampler (Ying et al., arXiv 1806.01973); a node may be its own neighbor. With one edge type among
    nodes of one type and many rounds, visits estimate personalized PageRank with restart probability `stop`.
    With `bias`, walks along one edge type take the steps of node2vec; a round goes on from the one before.

    The result has edges from the visited node to the start, by start and then by visits, with the column
    "visits" (int32). Give it to `khop.write_graph` as a new edge type, and sample by `khop.TopK("visits")` or
    `khop.Weighted("visits")`. It is computed in chunks while it is written, so only a chunk is in memory. A
    start whose walks end at once has no edges. Collective where the graph is.
    """
    graph_of("graph", graph)
    instance_of("counts", counts, WalkCounts, "must be khop.WalkCounts(...)")
    steps = checked_path(graph, path)
    if steps[0][2] != steps[-1][0]:
        raise ValueError(
            f"path {list(path)}: leads from {steps[0][2]!r} to {steps[-1][0]!r}; it must lead back, add the "
            "edge types of the way back"
        )
    check_bias(bias, path, steps)
    walks = _Walks(graph, steps, counts, DrawKey.of(seed_number(seed), Purpose.WALK), bias)
    return EdgeChunks(_chunks(walks))


@dataclass(frozen=True, eq=False)
class _Walks:
    """Walks of several rounds, to draw."""

    graph: GraphStore
    steps: list[EdgeType]  # of a round
    counts: WalkCounts
    key: DrawKey
    bias: Node2Vec | None = None

    def visits(self, starts: Tensor, ids: Tensor) -> Tensor:
        """Return int64 (starts, visits), -1 for none. Walk i of the original id v is v * walks + i."""
        counts = self.counts
        before: Tensor | None = None
        numbers = (ids[:, None] * counts.walks + torch.arange(counts.walks)).view(-1)
        at = starts.repeat_interleave(counts.walks)
        visited = []
        for number in range(counts.rounds):
            if number:
                at = torch.where(_stops(numbers, number, self.key) < counts.threshold, ENDED, at)
            for step, edge_type in enumerate(self.steps, start=1 + number * len(self.steps)):
                after = next_step(self.graph, edge_type, (before, at), numbers, step, self.key, self.bias)
                before, at = at, after
            visited.append(at.view(starts.numel(), counts.walks))
        return torch.cat(visited, dim=1)


def _chunks(walks: _Walks) -> Iterator[EdgeTable]:
    graph, counts, node_type = walks.graph, walks.counts, walks.steps[0][2]
    count = graph.num_nodes(node_type)
    at_once = max(1, (_WALKS_AT_ONCE if walks.bias is None else _BIASED_AT_ONCE) // counts.walks)
    originals = graph.original_ids(node_type)
    for begin in range(0, max(count, 1), at_once):
        starts = torch.arange(begin, min(begin + at_once, count))
        ids = starts if originals is None else originals[starts]
        yield _most_visited(starts, walks.visits(starts, ids), counts, originals)


def _stops(numbers: Tensor, round_number: int, key: DrawKey) -> Tensor:
    """Return a word per walk, int64 (walks), that decides if it stops before a round."""
    zeros = torch.zeros_like(numbers)
    counters = torch.stack([numbers & WORD, numbers >> 32, zeros + round_number, zeros], dim=1)
    return philox(key.value, counters)[:, 0]


def _most_visited(starts: Tensor, visits: Tensor, counts: WalkCounts, originals: Tensor | None) -> EdgeTable:
    rows = torch.arange(starts.numel())[:, None].expand_as(visits)[visits >= 0]
    nodes = visits[visits >= 0]
    places = nodes if originals is None else originals[nodes]
    width = int(places.amax()) + 1 if places.numel() else 1
    pairs, at, times = (rows * width + places).unique(return_inverse=True, return_counts=True)
    source = torch.empty_like(pairs).scatter_(0, at, nodes)
    order = (-times).argsort(stable=True)  # pairs ascend by row, and then by original id
    order = order[(pairs // width)[order].argsort(stable=True)]
    row, source, times = (pairs // width)[order], source[order], times[order]
    sizes = torch.bincount(row, minlength=starts.numel())
    rank = torch.arange(row.numel()) - (sizes.cumsum(0) - sizes)[row]
    kept = rank < counts.keep
    return EdgeTable(source[kept], starts[row[kept]], {"visits": times[kept].int()})
