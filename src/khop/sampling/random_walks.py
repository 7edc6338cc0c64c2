"""Random walks along in-edges, uniform or node2vec (Grover and Leskovec 2016), and neighbors by visits.

The nodes that walks visit most often are the neighbors of PinSAGE and of personalized PageRank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from khop.arguments import (
    checked_field,
    graph_of,
    instance_of,
    list_of,
    real_number,
    seed_number,
    whole_number,
)
from khop.draw import DrawKey, Frontier, Neighbors, Purpose, stream
from khop.graph.rule import Hop
from khop.graph.store import GraphStore
from khop.graph.tables import EdgeChunks, EdgeTable
from khop.kernels.philox import WORD, mix64_reference, philox, philox_reference, reduce_wide, signed
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.seeds import SeedIds, node_ids
from khop.schema import EdgeType, EdgeTypeName, edge_type_of

ONE = 1 << 20  # the largest weight of an edge


@dataclass(frozen=True)
class Node2Vec:
    """Bias of random walks (Grover and Leskovec 2016).

    For a step from v whose previous node is t, an edge back to t has the weight 1 / p, edges to in-neighbors
    of t have the weight 1, and others 1 / q. Weights are rounded to 1 / 2^20 of the largest.

    Args:
        p: Return parameter, 1/1024 to 1024: with a large p, walks rarely return to t. Default 1: no effect.
        q: In-out parameter, 1/1024 to 1024: with a large q, walks stay near the start. Default 1: no effect.
    Raises:
        ValueError: `p` or `q` is out of range.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> path, bias = ["package linked package"] * 3, khop.Node2Vec(p=4.0, q=0.5)
        >>> khop.random_walks(graph, starts=[0], path=path, bias=bias).shape
        torch.Size([1, 4])
    """

    p: float = 1.0
    q: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("p", self.p), ("q", self.q)):
            if not 1 / 1024 <= real_number(name, value) <= 1024:
                raise ValueError(f"{name} {value}: must be from 1/1024 to 1024; 1 has no effect")

    @property
    def weights(self) -> tuple[int, int, int]:
        """The weights of an edge back, to a neighbor of the previous node, and to any other node."""
        given = (1 / self.p, 1.0, 1 / self.q)
        back, near, far = (max(1, round(ONE * weight / max(given))) for weight in given)
        return back, near, far


def biased_step(
    graph: GraphStore,
    edge_type: EdgeType,
    before: tuple[Tensor, Tensor],
    numbers: Tensor,
    step: int,
    key: DrawKey,
    bias: Node2Vec,
) -> Tensor:
    """Return the next node of each walk, int64 (walks), or -1 if it has ended or ends.

    `before` are the last two nodes of each. A step reads all in-edges of both: one hop.
    """
    last, at = before
    going = at >= 0
    last, at, numbers = last[going], at[going], numbers[going]
    nodes, rows = torch.cat([at, last]).unique(return_inverse=True)
    hop = Hop(step, {edge_type: -1}, UNIFORM, edge_ids=False)
    found = graph.sample_hop({edge_type[2]: Frontier(nodes)}, hop, key)[edge_type]
    sources, degrees = _rows(found, rows[: at.numel()])
    walk = torch.repeat_interleave(degrees)
    sums = _weights(found, sources, walk, (last, rows[at.numel() :]), bias).cumsum(0)
    ends = degrees.cumsum(0)
    totals = torch.cat([sums.new_zeros(1), sums])[torch.stack([ends - degrees, ends])]
    can_go = degrees > 0
    picked = totals[0] + _draws(graph, edge_type, at, numbers, step, key, totals[1] - totals[0])
    places = torch.searchsorted(sums, picked[can_go], right=True)
    after = torch.full_like(at, -1).masked_scatter_(can_go, sources[places])
    return torch.full_like(going, -1, dtype=torch.int64).masked_scatter_(going, after)


def _rows(found: Neighbors, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the neighbors of some rows, int64, one row after another, and the size of each row."""
    degrees = found.offsets.diff()[rows]
    ends = degrees.cumsum(0)
    places = torch.arange(int(degrees.sum())) + torch.repeat_interleave(
        found.offsets[rows] - (ends - degrees), degrees
    )
    return found.nodes[places].long(), degrees


def _weights(
    found: Neighbors, sources: Tensor, walk: Tensor, last: tuple[Tensor, Tensor], bias: Node2Vec
) -> Tensor:
    """Return int64 (edges). `last` has the node before of each walk, and its row."""
    nodes, rows = last
    most = int(torch.cat([found.nodes.long(), sources, nodes]).amax()) + 1 if sources.numel() else 1
    pairs = (found.by_row(torch.arange(found.offsets.numel() - 1)) * most + found.nodes.long()).sort().values
    wanted = rows[walk] * most + sources
    at = torch.searchsorted(pairs, wanted).clamp_(max=max(pairs.numel() - 1, 0))
    is_near = pairs[at] == wanted if pairs.numel() else torch.zeros_like(wanted, dtype=torch.bool)
    back, near, far = bias.weights
    weights = torch.where(is_near, near, far)
    return torch.where(sources == nodes[walk], back, weights)


def _draws(
    graph: GraphStore,
    edge_type: EdgeType,
    at: Tensor,
    numbers: Tensor,
    step: int,
    key: DrawKey,
    bounds: Tensor,
) -> Tensor:
    """Draw a number below each bound, int64 (walks): the first two words of the node in the walk's tree."""
    originals = graph.original_ids(edge_type[2])
    ids = at if originals is None else originals[at]
    keys = mix64_reference(signed(key.value) ^ mix64_reference(numbers))
    counters = torch.stack(
        [ids & WORD, ids >> 32, torch.full_like(ids, stream(step, edge_type)), torch.zeros_like(ids)], dim=1
    )
    words = philox_reference(torch.stack([keys & WORD, (keys >> 32) & WORD], dim=1), counters)
    return reduce_wide(words[:, 0], words[:, 1], bounds)


ENDED = -1  # in place of a node, after the end of a walk


def random_walks(
    graph: GraphStore,
    starts: SeedIds,
    path: Sequence[EdgeTypeName],
    *,
    bias: Node2Vec | None = None,
    seed: int = 0,
    epoch: int = 0,
    first: int = 0,
) -> Tensor:
    """Walk from each start along one edge of each type of a path.

    A step goes against the direction of an edge, from its destination to its source, as in neighbor sampling.
    Use the reverse edge types to walk the other way. A walk at a node without in-edges of the type ends. Walk
    i is a function of (graph, start, path, seed, epoch, `first` + i). Collective if the graph is: ranks may
    have different starts, or none.

    Args:
        graph: Graph to walk in.
        starts: Nodes, as ids or a boolean mask (a tensor, an array, a list or a Series), or "all".
        path: Edge type of each step. The destination type of the first one is the node type of the starts;
            that of each further one is the source type of the previous one.
        bias: Weights of the edges, `khop.Node2Vec(p, q)`. None (default): every in-edge is equally
            likely.
        seed: Seed of the draws, default 0.
        epoch: Epoch of the draws, default 0.
        first: Number of the first walk, default 0, if walks are made in several calls or on several
            ranks.
    Returns:
        Global ids, int64 (walks, steps + 1); -1 after the end of a walk.
    Raises:
        ValueError: The path does not fit the graph or itself.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> walks = khop.random_walks(graph, [0, 1, 2], ["package linked package"] * 4)
        >>> walks.shape, walks[:, 0]
        (torch.Size([3, 5]), tensor([0, 1, 2]))
    """
    graph_of("graph", graph)
    steps = checked_path(graph, path)
    at = node_ids("starts", starts, graph.num_nodes(steps[0][2]))
    key = DrawKey.of(seed_number(seed), Purpose.WALK, whole_number("epoch", epoch, 0))
    numbers = torch.arange(at.numel()) + whole_number("first", first, 0, (1 << 62))
    check_bias(bias, path, steps)
    before: Tensor | None = None
    visited = [at]
    for number, edge_type in enumerate(steps, start=1):
        after = next_step(graph, edge_type, (before, at), numbers, number, key, bias)
        before, at = at, after
        visited.append(at)
    return torch.stack(visited, dim=1)


def checked_path(graph: GraphStore, path: Sequence[EdgeTypeName]) -> list[EdgeType]:
    """Return the edge types of a walk; ValueError unless each begins where the one before led."""
    steps = [
        edge_type_of(name) for name in list_of("path", path, '["user buys item", "item bought-by user"]')
    ]
    if not steps:
        raise ValueError("path []: has no edge type; give one for each step")
    for edge_type in steps:
        if edge_type not in graph.schema.edge_types:
            raise ValueError(f"path: no edge type {edge_type!r}; there are {list(graph.schema.edge_types)}")
    for before, after in pairwise(steps):
        if after[2] != before[0]:
            raise ValueError(
                f"path: {after} after {before}: a step goes from destination to source, so it must end at "
                f"{before[0]!r}"
            )
    return steps


def check_bias(bias: Node2Vec | None, path: Sequence[EdgeTypeName], steps: list[EdgeType]) -> None:
    """Raise ValueError for a bias of another type, or of walks along several edge types."""
    if bias is None:
        return
    instance_of("bias", bias, Node2Vec, "must be khop.Node2Vec(p, q) or None")
    if len(set(steps)) > 1:
        raise ValueError(f"path {list(path)} with {bias}: must be of one edge type; leave bias out")


def next_step(
    graph: GraphStore,
    edge_type: EdgeType,
    last: tuple[Tensor | None, Tensor],
    numbers: Tensor,
    step: int,
    key: DrawKey,
    bias: Node2Vec | None,
) -> Tensor:
    """Return the next node of each walk, int64 (walks): one in-neighbor, or -1 if it has ended or ends.

    `last` has the last two nodes of each walk; the first step has one, and is uniform. In a uniform step each
    walk is a frontier of one node in a separate tree, `numbers`, with fanout 1.
    """
    before, at = last
    if bias is not None and before is not None:
        return biased_step(graph, edge_type, (before, at), numbers, step, key, bias)
    going = at >= 0
    hop = Hop(step, {edge_type: 1}, UNIFORM, edge_ids=False)
    walkers = Frontier(at[going], tree=numbers[going])
    found = graph.sample_hop({edge_type[2]: walkers}, hop, key)[edge_type]
    after = torch.full_like(walkers.nodes, ENDED)
    after[found.offsets.diff() > 0] = found.nodes.long()
    return torch.full_like(at, ENDED).masked_scatter_(going, after)


_WALKS_AT_ONCE = 1 << 20
_BIASED_AT_ONCE = 1 << 15  # a step of these reads all in-edges of each walk's node


@dataclass(frozen=True)
class WalkCounts:
    """Numbers of walks from a node, and of the visited nodes that are kept as its neighbors.

    A walk follows the path up to `rounds` times. The node at the end of each round is a visit.

    Args:
        walks: Walks from each node, default 10.
        rounds: Maximum number of rounds of a walk, default 2.
        stop: Probability that a walk stops before each round except the first, default 0.5.
        keep: Neighbors per node: those with the most visits, ties by the lowest original id; default 10.
    Raises:
        ValueError: A number is below 1, or `stop` is not a probability.
    Example:
        >>> graph, counts = khop.open_graph("debian"), khop.WalkCounts(walks=100, rounds=8, stop=0.15)
        >>> near = khop.walk_neighbors(graph, ["package linked package"], counts)
    """

    walks: int = 10
    rounds: int = 2
    stop: float = 0.5
    keep: int = 10

    def __post_init__(self) -> None:
        for name in ("walks", "rounds", "keep"):
            checked_field(self, name, whole_number, 1, (1 << 31) - 1)
        if not 0 <= checked_field(self, "stop", real_number) <= 1:
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

    With a path to another type and back, the result has the neighbors of DGL's PinSAGESampler (Ying et al.,
    arXiv 1806.01973); a node may be its own neighbor. With one edge type among nodes of one type and many
    rounds, visits estimate personalized PageRank with restart probability `counts.stop`. Collective if the
    graph is.

    Args:
        graph: Graph to walk in.
        path: Edge types from the node type back to it, such as ["user buys item", "item bought-by user"]:
            a step goes from the destination of an edge to its source.
        counts: Numbers of walks, rounds and neighbors, `WalkCounts()` by default.
        bias: `khop.Node2Vec(p, q)` for walks along one edge type; each round continues from the previous one.
            Default None.
        seed: Seed of the draws, default 0.
    Returns:
        Edges from the visited node to the start, by start and then by visits, with the column "visits"
        (int32). Pass them to `khop.write_graph` as a new edge type, and sample with `khop.TopK("visits")` or
        `khop.Weighted("visits")`. They are computed in chunks while they are written. A start whose walks end
        at once has no edges.
    Raises:
        ValueError: The path does not lead back.
    Example:
        >>> edges = {"item to item": khop.EdgeTable(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", {"item": khop.NodeTable(3)}, edges))
        >>> near = khop.walk_neighbors(graph, ["item to item"], khop.WalkCounts(keep=1))
        >>> table = next(iter(near.chunks))
        >>> table.sources.tolist(), table.destinations.tolist()
        ([2, 0, 1], [0, 1, 2])
    """
    graph_of("graph", graph)
    instance_of("counts", counts, WalkCounts, "must be khop.WalkCounts(...)")
    steps = checked_path(graph, path)
    if steps[0][2] != steps[-1][0]:
        raise ValueError(
            f"path {list(path)} leads from {steps[0][2]!r} to {steps[-1][0]!r}; it must lead back to the "
            "start, so add the edge types of the way back"
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
