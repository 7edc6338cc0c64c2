"""Partitioning methods, the balance that they keep, and the quality of their result.

The streaming methods LDG and Fennel need memory in proportion to the number of nodes. METIS (the extra
"metis") cuts fewer edges of small graphs, but keeps all edges in memory and uses one thread.
The other methods do not read edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from khop.components import NoOptions
from khop.graph.atomic import Meter
from khop.graph.folder import GraphFolder
from khop.graph.partitions.book import Quality, edge_key
from khop.graph.store import CscGraph
from khop.kernels.assign import Assigner, InEdges, Limit, Score
from khop.kernels.csc import Csc, build_csc, edge_spans
from khop.kernels.philox import WORD, philox
from khop.schema import NodeType

NODES, EDGES, BYTES = "nodes", "edges", "bytes"
_MOST_SPLITS = 8  # `Balance.members` has one byte per node, and one bit per split


@dataclass(frozen=True, eq=False)
class TypeNumbering:
    """A single numbering of the nodes of all types, one type after another in the order of the schema."""

    node_types: tuple[NodeType, ...]
    first_node: tuple[int, ...]  # number of the first node of each type, then the number of all nodes

    @classmethod
    def of(cls, counts: Mapping[NodeType, int]) -> TypeNumbering:
        """Number the nodes of a graph, given the node count of each type."""
        return cls(tuple(counts), tuple(accumulate(counts.values(), initial=0)))

    @property
    def num_nodes(self) -> int:
        """The number of nodes of all types."""
        return self.first_node[-1]

    def first(self, node_type: NodeType) -> int:
        """Return the number of node 0 of a type."""
        return self.first_node[self.node_types.index(node_type)]

    def by_type(self, values: Tensor) -> dict[NodeType, Tensor]:
        """Split a tensor with one value per node by node type."""
        spans = zip(self.node_types, self.first_node, self.first_node[1:], strict=False)
        return {node_type: values[begin:end] for node_type, begin, end in spans}


@dataclass(frozen=True, eq=False)
class Balance:
    """Size limits of a part, by the names used in reports."""

    limits: Mapping[str, Limit]
    totals: Mapping[str, int]  # over all parts
    members: Tensor  # uint8 (nodes): one bit per split; empty if no split is balanced


@dataclass(frozen=True, eq=False)
class AssignRequest:
    """The input of a partitioning method, which assigns a part to every node of a graph."""

    graph: CscGraph
    numbering: TypeNumbering
    balance: Balance
    parts: int
    threads: int
    meter: Meter


class Partitioner(Protocol):
    """A partitioning method: assigns a part to each node.

    A component of the family `khop.data.partition.methods.PARTITIONERS` makes one:
    `build(options, context)` with a `PartitionContext`.
    """

    @property
    def passes(self) -> int:
        """The number of passes over the nodes, for the progress bar."""
        ...

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        ...


@dataclass(frozen=True)
class PartitionContext:
    """Inputs of a partitioner's `build` other than its options."""

    parts: int
    seed: int


def balance_of(
    folder: GraphFolder, numbering: TypeNumbering, parts: int, names: Sequence[str], slack: float
) -> Balance:
    """Compute limits: at most 1 + slack times a part's equal share of each quantity in `names`.

    "nodes" sets one limit per node type. "edges" counts edges by their destinations. "bytes" counts the
    bytes of node columns. Any other name is a split, such as "train".
    """
    if not slack >= 0 or math.isinf(slack):
        raise ValueError(f"slack {slack}: must be a number, at least 0, such as 0.05 for 5 %")
    splits = [name for name in names if name not in (NODES, EDGES, BYTES)]
    _check_names(folder, names, splits)
    limits: dict[str, Limit] = {}
    for name in names:
        limits |= _totals(folder, numbering, name, splits)
    totals = {label: limit.capacity for label, limit in limits.items()}
    for label, total in totals.items():
        capacity = max(-(-total // parts), int(total * (1 + slack) / parts))
        limits[label] = replace(limits[label], capacity=capacity)
    return Balance(limits, totals, _members(folder, numbering, splits))


def _totals(
    folder: GraphFolder, numbering: TypeNumbering, name: str, splits: Sequence[str]
) -> dict[str, Limit]:
    """Return the quantities that a name of `balance_of` selects, with the total over all parts as limit."""
    types, ones = numbering.node_types, tuple(1 for _ in numbering.node_types)
    counts = [folder.num_nodes(node_type) for node_type in types]
    if name == NODES:
        labels = [NODES] if len(types) == 1 else [f"{node_type} nodes" for node_type in types]
        only = [tuple(int(one == other) for other in types) for one in types]
        return dict(zip(labels, map(Limit, only, counts), strict=True))
    if name == EDGES:
        edges = sum(folder.num_edges(edge_type) for edge_type in folder.schema.edge_types)
        return {EDGES: Limit(ones, edges, by_degree=True)}
    if name == BYTES:
        by_type = tuple(_row_bytes(folder, node_type) for node_type in types)
        return {BYTES: Limit(by_type, sum(b * n for b, n in zip(by_type, counts, strict=True)))}
    seeds = sum(ids.numel() for ids in folder.split(name).values())
    return {name: Limit(ones, seeds, member=1 << splits.index(name))}


def _check_names(folder: GraphFolder, names: Sequence[str], splits: Sequence[str]) -> None:
    known = [NODES, EDGES, BYTES, *folder.split_names]
    for name in names:
        if name not in known:
            raise ValueError(f"balance {name!r}: parts can be balanced by {', '.join(known)}")
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"balance {list(names)}: give at least one name, each once")
    if len(splits) > _MOST_SPLITS:
        raise ValueError(f"balance by {len(splits)} splits: at most {_MOST_SPLITS}")


def _row_bytes(folder: GraphFolder, node_type: NodeType) -> int:
    columns = folder.columns()[node_type].values()
    return sum(column[:1].numel() * column.element_size() for column in columns)


def _members(folder: GraphFolder, numbering: TypeNumbering, splits: Sequence[str]) -> Tensor:
    members = torch.zeros(numbering.num_nodes if splits else 0, dtype=torch.uint8)
    for bit, name in enumerate(splits):
        for node_type, ids in folder.split(name).items():
            members[ids + numbering.first(node_type)] |= 1 << bit
    return members


def quality_of(
    graph: CscGraph,
    numbering: TypeNumbering,
    balance: Balance,
    assigned: Mapping[NodeType, Tensor],
    parts: int,
) -> Quality:
    """Measure a partition.

    The result has the share of edges between two parts, and for each balanced quantity the load of each part
    relative to its equal share.
    """
    counts = {
        edge_key(t): (cut_edges(graph.csc(t), assigned[t[0]], assigned[t[2]]), graph.csc(t).num_edges)
        for t in graph.schema.edge_types
    }
    counts["all"] = (sum(cut for cut, _ in counts.values()), sum(edges for _, edges in counts.values()))
    cut = {key: cut / max(edges, 1) for key, (cut, edges) in counts.items()}
    return Quality(cut, _shares(graph, numbering, balance, assigned, parts))


def cut_edges(csc: Csc, sources: Tensor, destinations: Tensor) -> int:
    """Count the edges between two parts. `sources` and `destinations` are int32 (nodes): the part of each."""
    csc.check()
    cut = 0
    for span in edge_spans(csc.indptr):
        there = sources[csc.indices[span.first : span.end].long()]
        cut += int((span.per_edge(destinations[span.rows]) != there).sum())
    return cut


def _shares(
    graph: CscGraph,
    numbering: TypeNumbering,
    balance: Balance,
    assigned: Mapping[NodeType, Tensor],
    parts: int,
) -> dict[str, tuple[float, ...]]:
    part_of = torch.cat([assigned[t] for t in numbering.node_types]).long()
    types = torch.cat([torch.full_like(assigned[t], i) for i, t in enumerate(numbering.node_types)]).long()
    shares: dict[str, tuple[float, ...]] = {}
    for name, limit in balance.limits.items():
        weights = torch.tensor(limit.by_type)[types]
        if limit.member:
            weights = weights * (balance.members & limit.member != 0)
        if limit.by_degree:
            weights = weights * _in_degrees(graph, numbering)
        loads = torch.zeros(parts, dtype=torch.int64).index_add_(0, part_of, weights)
        shares[name] = tuple((loads * parts / max(balance.totals[name], 1)).tolist())
    return shares


def _in_degrees(graph: CscGraph, numbering: TypeNumbering) -> Tensor:
    degrees = torch.zeros(numbering.num_nodes, dtype=torch.int64)
    for edge_type in graph.schema.edge_types:
        first = numbering.first(edge_type[2])
        degrees[first : first + graph.num_nodes(edge_type[2])] += graph.csc(edge_type).degrees()
    return degrees


CLUSTERS_PER_PART = 16
CLUSTER_PASSES, PLACE_PASSES, STREAM_PASSES, REFINE_PASSES = 2, 2, 4, 4
_CALL_BLOCKS = 64  # blocks per native call; Ctrl-C is checked between two calls
_Range = Callable[[int, int], None]


@dataclass(frozen=True)
class Streaming:
    """A method in four stages: cluster neighbors, place clusters, place single nodes, and move nodes to the
    parts of their neighbors. Each stage makes several passes.

    Neighbors are the sources of in-edges of all edge types. In a graph with edges in only one direction, a
    node is therefore placed with its sources. The result depends only on the graph, the number of
    parts and the limits.
    """

    score: Score
    passes = CLUSTER_PASSES + PLACE_PASSES + STREAM_PASSES + REFINE_PASSES

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        graph, numbering, meter = request.graph, request.numbering, request.meter
        parts, threads, nodes = request.parts, request.threads, numbering.num_nodes
        assigner = Assigner(
            numbering.first_node,
            [
                InEdges(numbering.first(t[0]), numbering.first(t[2]), graph.csc(t))
                for t in graph.schema.edge_types
            ],
            list(request.balance.limits.values()),
            request.balance.members,
            parts=parts,
            score=self.score,
            cluster_limit=max(1, nodes // (CLUSTERS_PER_PART * parts)),
        )

        def make(passes: int, what: str, work: Callable[..., None], count: int, unit: int) -> None:
            for _ in range(passes):
                _pass(meter, nodes, unit, what, partial(work, threads=threads), count)

        make(CLUSTER_PASSES, "clustering", assigner.cluster, nodes, assigner.block)
        make(PLACE_PASSES, "placing clusters", assigner.place_clusters, assigner.num_cluster_blocks(), 1)
        make(STREAM_PASSES, "placing nodes", assigner.stream, nodes, assigner.block)
        make(REFINE_PASSES, "moving nodes", assigner.refine, nodes, assigner.block)
        return assigner.parts()


class Ldg:
    """Linear deterministic greedy (Stanton and Kliot 2012)."""

    Options = NoOptions

    @staticmethod
    def build(options: NoOptions, context: PartitionContext) -> Streaming:
        """Make the method."""
        return Streaming(Score.LDG)


class Fennel:
    """Fennel (Tsourakakis et al. 2014)."""

    Options = NoOptions

    @staticmethod
    def build(options: NoOptions, context: PartitionContext) -> Streaming:
        """Make the method."""
        return Streaming(Score.FENNEL)


def _pass(meter: Meter, nodes: int, unit: int, what: str, work: _Range, count: int) -> None:
    """Make one pass over `count` nodes or blocks, in calls short enough for Ctrl-C.

    In the progress bar, each pass counts as `nodes`.
    """
    step, reported = unit * _CALL_BLOCKS, 0
    for begin in range(0, count, step):
        end = min(begin + step, count)
        work(begin, end)
        meter.at(what, nodes * end // count - reported)
        reported = nodes * end // count


@dataclass(frozen=True)
class _Seeded:
    """A method in one pass, with a seed."""

    seed: int
    passes: ClassVar[int] = 1
    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions, context: PartitionContext) -> Self:
        """Make the method with the seed."""
        return cls(context.seed)


@dataclass(frozen=True)
class RandomParts(_Seeded):
    """Random parts with equal numbers of nodes of each type. Other limits hold only on average."""

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        assigned = []
        for number, (node_type, count) in enumerate(request.graph.counts.items()):
            words = _words(self.seed, torch.arange(count), number).sub_(1 << 31).int()  # half the memory
            order = torch.argsort(words, stable=True)
            assigned.append(torch.empty(count, dtype=torch.int32))
            assigned[-1][order] = _plain_shares(count, request.parts)
            request.meter.at(f"drawing parts of {node_type!r} nodes", count)
        return torch.cat(assigned)


@dataclass(frozen=True)
class RangeParts:
    """Parts of consecutive ids with equal numbers of nodes of each type.

    Useful if nearby ids already belong to connected nodes.
    """

    passes = 1

    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions, context: PartitionContext) -> RangeParts:
        """Make the method."""
        return cls()

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        request.meter.at("cutting ranges", request.numbering.num_nodes)
        return torch.cat([_plain_shares(count, request.parts) for count in request.graph.counts.values()])


@dataclass(frozen=True)
class HashParts(_Seeded):
    """Parts by a hash of the original id. A node keeps its part when the graph around it changes."""

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        assigned = []
        for number, (node_type, count) in enumerate(request.graph.counts.items()):
            ids = request.graph.original_ids(node_type)
            words = _words(self.seed, torch.arange(count) if ids is None else ids, number)
            assigned.append((words * request.parts >> 32).int())
            request.meter.at(f"hashing ids of {node_type!r} nodes", count)
        return torch.cat(assigned)


_AT_ONCE = 1 << 20  # ids, whose counters and words take 64 bytes each


def _words(seed: int, ids: Tensor, number: int) -> Tensor:
    """Draw a random word, int64 in [0, 2^32), for each id; `number` is the position of the node type."""
    words = torch.empty_like(ids)
    for some, out in zip(ids.split(_AT_ONCE), words.split(_AT_ONCE), strict=True):
        last = torch.full_like(some, number), torch.zeros_like(some)
        out.copy_(philox(seed, torch.stack([some & WORD, some >> 32, *last], dim=1))[:, 0])
    return words


def _plain_shares(count: int, parts: int) -> Tensor:
    """Return equal consecutive shares: 0, ..., 0, 1, ..., 1, ..., int32 (count)."""
    return (torch.arange(count) * parts // max(count, 1)).int()


@dataclass(frozen=True)
class Metis(_Seeded):
    """METIS (Karypis and Kumar 1998).

    It balances only the number of nodes. Other limits do not affect the result, and are only reported. Of a
    seed, METIS takes the low bits that its integers have.
    """

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        try:
            import pymetis
        except ImportError as error:
            raise ValueError("method metis: pymetis is not installed; pip install pymetis") from error
        request.meter.at("METIS reads the edges")
        edges = _undirected(request.graph, request.numbering)
        dtype = pymetis.zero_copy_dtype()
        largest = np.iinfo(dtype).max
        if max(edges.num_edges, edges.num_rows) > largest:
            raise ValueError(
                f"method metis: {edges.num_rows:,} nodes and {edges.num_edges:,} edges, counted in both "
                f"directions, exceed the {largest:,} of pymetis; use another method, such as ldg"
            )
        adjacency = pymetis.CSRAdjacency(
            edges.indptr.numpy().astype(dtype), edges.indices.numpy().astype(dtype)
        )
        request.meter.at("METIS at work")
        options = pymetis.Options(seed=self.seed % (largest + 1))
        _, assigned = pymetis.part_graph(request.parts, adjacency, options=options)
        request.meter.at("METIS", request.numbering.num_nodes)
        return torch.tensor(assigned, dtype=torch.int32)


def _undirected(graph: CscGraph, numbering: TypeNumbering) -> Csc:
    """Return every edge of every type in both directions, without self-loops."""
    sources, destinations = [], []
    for edge_type in graph.schema.edge_types:
        csc = graph.csc(edge_type)
        csc.check()
        sources.append(csc.indices.long() + numbering.first(edge_type[0]))
        destinations.append(csc.destinations(numbering.first(edge_type[2])))
    ends = torch.stack([torch.cat(sources), torch.cat(destinations)])
    ends = ends[:, ends[0] != ends[1]]
    nodes = numbering.num_nodes
    both, _ = build_csc(torch.cat([ends[0], ends[1]]), torch.cat([ends[1], ends[0]]), nodes, nodes)
    return both
