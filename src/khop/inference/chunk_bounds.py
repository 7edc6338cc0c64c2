"""Bounds of chunks of nodes: at most so many nodes, and at most so many edges to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.errors import Unsupported
from khop.graph.store import GraphStore
from khop.inference.part_order import pieces_of
from khop.inference.stages import Stage
from khop.schema import EdgeType, NodeType

CHUNK_EDGES = 1 << 20  # a batch of 128 floats per node then has at most 0.5 GB
ROWS_AT_ONCE = 1 << 14  # rows whose numbers of edges are in memory

EdgesOf = Callable[[slice], Tensor]  # numbers of edges of some rows, int64


@dataclass(frozen=True)
class ChunkLimits:
    """The most nodes of a chunk, and the most edges to its nodes. A node with more is a chunk by itself."""

    nodes: int
    edges: int = CHUNK_EDGES

    def __post_init__(self) -> None:
        whole_number("chunk_size", self.nodes, 1)
        whole_number("chunk_edges", self.edges, 1)


def chunk_starts(pieces: Sequence[int], limits: ChunkLimits, edges_of: EdgesOf) -> tuple[int, ...]:
    """Return the first row of every chunk, and the end; no chunk crosses a bound of `pieces`.

    Only the numbers of edges decide: the chunks are equal wherever the edges are stored.
    """
    starts = [start for first, last in pairwise(pieces) for start in _starts(first, last, limits, edges_of)]
    return (*starts, pieces[-1])


def _starts(first: int, last: int, limits: ChunkLimits, edges_of: EdgesOf) -> Iterator[int]:
    at = first
    while at < last:
        begin, end = at, min(last, at + max(ROWS_AT_ONCE, limits.nodes))
        sums = torch.cat([torch.zeros(1, dtype=torch.int64), edges_of(slice(begin, end)).cumsum(0)])
        while at < end and (end == last or at + limits.nodes <= end):
            yield at
            most = sums[at - begin] + limits.edges
            fits = begin + int(torch.searchsorted(sums, most, right=True)) - 1
            at = min(max(fits, at + 1), at + limits.nodes, end)


@dataclass(frozen=True)
class ChunkBounds:
    """The division of layers of a model into chunks.

    Edges are bounded if the graph tells the in-degrees of nodes without other ranks.
    """

    graph: GraphStore
    edge_types: Sequence[EdgeType]  # along which the layers read neighbors
    limits: ChunkLimits
    _whole: dict[NodeType, tuple[int, ...] | None] = field(default_factory=dict)  # the same in all layers

    def stage(self, layer: int, node_type: NodeType, like: Tensor, nodes: Tensor | None) -> Stage:
        """Return the stage of one layer's rows of a type: those of `nodes`, int64, or of all nodes."""
        bounds = self.graph.partition_bounds(node_type)
        count = bounds[-1] if nodes is None else nodes.numel()
        pieces = pieces_of(nodes, bounds)
        stage = Stage(layer, node_type, count, self.limits.nodes, like, nodes, pieces=pieces)
        if nodes is not None:
            return replace(stage, bounded=self._starts(stage))
        if node_type not in self._whole:
            self._whole[node_type] = self._starts(stage)
        return replace(stage, bounded=self._whole[node_type])

    def _starts(self, stage: Stage) -> tuple[int, ...] | None:
        into = [edge_type for edge_type in self.edge_types if edge_type[2] == stage.node_type]

        def edges_of(rows: slice) -> Tensor:
            nodes = stage.nodes_of(rows)
            found = torch.zeros_like(nodes)
            for edge_type in into:
                found += self.graph.in_degrees(edge_type, nodes)
            return found

        if self.graph.is_collective:
            return None
        try:
            return chunk_starts(stage.pieces or (0, stage.count), self.limits, edges_of)
        except Unsupported:
            return None
