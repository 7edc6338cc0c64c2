"""Neighbor sampling over several hops in plain Python: lists, dictionaries and one draw after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from khop.batch import Sample
from khop.draw import stream
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.schema import EdgeType, NodeType, Schema
from khop.testing.reference import sample_hop

Ids = list[int]


@dataclass(frozen=True)
class PlainGraph:
    """Edges `(source, destination)` by type; a destination's edges keep their order."""

    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, Sequence[tuple[int, int]]]

    def csc(self, edge_type: EdgeType) -> tuple[Ids, Ids]:
        indptr, indices = [0], []
        for row in range(self.counts[edge_type[2]]):
            indices += [source for source, destination in self.edges[edge_type] if destination == row]
            indptr.append(len(indices))
        return indptr, indices

    def opened(self, index_dtype: torch.dtype = torch.int32) -> CscGraph:
        edges = {}
        for edge_type in self.edges:
            indptr, indices = self.csc(edge_type)
            edges[edge_type] = Csc(torch.tensor(indptr), torch.tensor(indices, dtype=index_dtype))
        return CscGraph(Schema(tuple(self.counts), tuple(self.edges)), self.counts, edges)


@dataclass(frozen=True)
class PlainBlock:
    """Per edge type (indptr, local source ids, edge ids), and how many nodes there are on either side."""

    rows: dict[EdgeType, tuple[Ids, Ids, Ids]]
    src_counts: dict[NodeType, int]
    dst_counts: dict[NodeType, int]


@dataclass(frozen=True)
class PlainSample:
    nodes: dict[NodeType, Ids]
    seed_index: dict[NodeType, Ids]
    blocks: list[PlainBlock]  # input layer first


class _Nodes:
    """First-seen order, by type."""

    def __init__(self, types: Sequence[NodeType]) -> None:
        self.ids: dict[NodeType, Ids] = {node_type: [] for node_type in types}

    def local(self, node_type: NodeType, node: int) -> int:
        if node not in self.ids[node_type]:
            self.ids[node_type].append(node)
        return self.ids[node_type].index(node)

    def counts(self) -> dict[NodeType, int]:
        return {node_type: len(ids) for node_type, ids in self.ids.items()}


def sample(
    graph: PlainGraph,
    seeds: Mapping[NodeType, Ids],
    fanouts: Sequence[Mapping[EdgeType, int]],
    replacement: bool,
    layered: bool,
    key: int,
) -> PlainSample:
    """What NeighborSampler has to give, bit for bit."""
    nodes = _Nodes(list(graph.counts))
    seed_index = {t: [nodes.local(t, node) for node in ids] for t, ids in seeds.items()}
    cscs = {edge_type: graph.csc(edge_type) for edge_type in graph.edges}
    blocks: list[PlainBlock] = []
    drawn: dict[EdgeType, dict[int, Ids]] = {edge_type: {} for edge_type in graph.edges}  # of the last draw
    named = [edge_type for edge_type in graph.edges if any(edge_type in fanout for fanout in fanouts)]
    for hop, fanout in enumerate(fanouts, start=1):
        destinations = {node_type: list(ids) for node_type, ids in nodes.ids.items()}
        for edge_type in graph.edges:
            if edge_type not in fanout:
                continue
            source, _, destination = edge_type
            indptr, indices = cscs[edge_type]
            new = [
                n
                for n in destinations[destination]
                if layered or not _is_drawn(blocks, n, destination, nodes)
            ]
            word = stream(hop, edge_type)
            picked = sample_hop(indptr, new, fanout[edge_type], replacement, key, word)
            drawn[edge_type] |= dict(zip(new, picked, strict=True))
            for edge in (edge for row in picked for edge in row):
                nodes.local(source, indices[edge])
        rows = {}
        for edge_type in [t for t in graph.edges if t in fanout] if layered else named:
            rows[edge_type] = _rows(
                destinations[edge_type[2]], drawn[edge_type], cscs[edge_type][1], nodes, edge_type
            )
        dst_counts = {node_type: len(ids) for node_type, ids in destinations.items()}
        blocks.append(PlainBlock(rows, nodes.counts(), dst_counts))
    return PlainSample(nodes.ids, seed_index, blocks[::-1])


def _is_drawn(blocks: Sequence[PlainBlock], node: int, node_type: NodeType, nodes: _Nodes) -> bool:
    """Whether the node was a destination of an earlier hop."""
    return bool(blocks) and nodes.local(node_type, node) < blocks[-1].dst_counts[node_type]


def _rows(
    destinations: Ids, drawn: Mapping[int, Ids], indices: Ids, nodes: _Nodes, edge_type: EdgeType
) -> tuple[Ids, Ids, Ids]:
    indptr, sources, edges = [0], [], []
    for node in destinations:
        for edge in drawn.get(node, []):
            sources.append(nodes.local(edge_type[0], indices[edge]))
            edges.append(edge)
        indptr.append(len(sources))
    return indptr, sources, edges


def as_plain(sample: Sample) -> PlainSample:
    """A sample with edge ids, to be compared with the reference's; its dtypes and counts are checked."""
    blocks = []
    for block in sample.blocks:
        rows = {}
        for edge_type, adjacency in block.adjacencies.items():
            assert adjacency.num_src == block.src_counts[edge_type[0]]
            assert adjacency.num_dst == block.dst_counts[edge_type[2]]
            assert adjacency.indptr.dtype == adjacency.edge_ids.dtype == torch.int64
            assert adjacency.indices.dtype == torch.int32
            columns = (adjacency.indptr, adjacency.indices, adjacency.edge_ids)
            rows[edge_type] = tuple(column.tolist() for column in columns)
        blocks.append(PlainBlock(rows, dict(block.src_counts), dict(block.dst_counts)))
    nodes = {node_type: ids.tolist() for node_type, ids in sample.nodes.items()}
    seed_index = {node_type: index.tolist() for node_type, index in sample.seed_index.items()}
    return PlainSample(nodes, seed_index, blocks)
