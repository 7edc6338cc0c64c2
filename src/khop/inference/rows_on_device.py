"""Layers over all neighbors on a device that has the edges and columns of the graph.

A chunk reads the rows of its sources where the layer before left them: its nodes are not numbered and its
source rows are not gathered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from khop.batch import Adjacency, Batch, Block, Sample
from khop.draw import DrawKey, Frontier
from khop.graph.rule import Hop
from khop.graph.store import CscGraph
from khop.inference.chunks import ONE_CHUNK, Chunk, Chunks, evaluating
from khop.inference.stages import VALUES, ChunkLimits, Stage
from khop.kernels.lazy_rows import LazyRows
from khop.loading.device.device_memory import memory_of
from khop.loading.device.streams import streams_of
from khop.models.stack import Layered
from khop.sampling.outputs import Degrees, counted_degrees, divided
from khop.sampling.sampler import NeighborSampler
from khop.schema import EdgeType, NodeType

LEAST = ChunkLimits(1 << 18, 1 << 22)  # a chunk of the CPU would not fill a GPU
MOST_ROWS = (1 << 31) - 1  # local ids are int32
_ALIGNED = 16  # rows of a chunk begin at a multiple of 16 bytes, whatever their width
_COPIES = 4  # of the rows of a chunk: copied destinations, sums, products, results


@dataclass(frozen=True, eq=False)
class RowTable:
    """Rows of all nodes of a type, with room in front for copies of a chunk's destinations."""

    memory: Tensor  # (room + nodes, ...)
    room: int

    @classmethod
    def empty(cls, like: Tensor, nodes: int, room: int, device: torch.device) -> RowTable:
        """Allocate rows with the shape and dtype of those of `like`."""
        room = _padded(room)
        memory = torch.empty((room + nodes, *like.shape[1:]), dtype=like.dtype, device=device)
        memory[:room] = 0  # products read unused rows too
        return cls(memory, room)

    @property
    def rows(self) -> Tensor:
        """The rows of all nodes, in order."""
        return self.memory[self.room :]

    def fill(self, rows: Tensor) -> None:
        """Copy the rows of all nodes from another place; rows that were written here stay."""
        if rows.data_ptr() != self.rows.data_ptr():
            self.rows.copy_(rows)

    def led_by(self, nodes: Tensor) -> Tensor:
        """Return the rows of some nodes, unused ones up to a multiple of 16, then those of all nodes.

        The next call overwrites the first ones.
        """
        count = nodes.numel()
        begin = self.room - _padded(count)
        torch.index_select(self.rows, 0, nodes, out=self.memory[begin : begin + count])
        return self.memory[begin:]


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


class EncodedBatch(Batch):
    """A batch with the input of a layer, also of the first one, instead of columns."""


@dataclass(frozen=True, eq=False)
class DeviceChunks:
    """Maker of the chunks of one layer, whose batches have all nodes of the graph: a `ChunkSource`."""

    graph: CscGraph
    hop: Hop
    tables: Mapping[NodeType, RowTable]
    degrees: Degrees | None  # of all nodes, if the rule divides weights by them
    works_ahead = False  # the next chunk overwrites rows of this one

    def with_threads(self, threads: int) -> DeviceChunks:
        """Return these chunks: the device makes them."""
        return self

    def move(self, tensor: Tensor) -> Tensor:
        """Return the tensor: it is on the device."""
        return tensor

    def made(
        self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None, chunk: Chunk = ONE_CHUNK
    ) -> Batch:
        """Make the batch of some nodes: they come first in their type, before all nodes of the type."""
        nodes, counts = nodes.to(self.graph.frontier_device), self.graph.counts
        shift = _padded(nodes.numel())
        num_rows = {t: counts[t] + shift if t == node_type else counts[t] for t in counts}
        frontier = {t: Frontier(nodes if t == node_type else nodes[:0]) for t in counts}
        adjacencies = {}
        for edge_type, found in self.graph.sample_hop(frontier, self.hop, DrawKey(0)).items():
            source, _, destination = edge_type
            if destination == node_type:
                ids = (found.nodes + shift if source == node_type else found.nodes).int()
                edges = Adjacency(found.offsets, ids, num_rows[source], found.edges, weight=found.weights)
                adjacencies[edge_type] = self._divided(edge_type, edges, nodes, shift)
        rows = {t: of.led_by(nodes) if t == node_type else of.rows for t, of in self.tables.items()}
        block = Block(adjacencies, num_rows, {node_type: nodes.numel()})
        index = {node_type: torch.arange(nodes.numel(), device=nodes.device)}
        columns = {t: {VALUES: of_type} for t, of_type in rows.items()}
        return EncodedBatch(Sample({}, (block,), index), {node_type: nodes}, columns, {}, 0, 0, nodes.numel())

    def _divided(self, edge_type: EdgeType, edges: Adjacency, nodes: Tensor, shift: int) -> Adjacency:
        if self.degrees is None:
            return edges
        source, _, destination = edge_type
        of_nodes, of_sources = self.degrees[destination][nodes], self.degrees.get(source)
        if of_sources is not None and source == destination:
            of_sources = torch.cat([of_sources.new_ones(shift), of_sources])
        return divided(edges, of_sources, of_nodes)


@dataclass(frozen=True, eq=False)
class RowsOnDevice:
    """Computation of layers on a device that has the edges, and the columns that the model reads."""

    model: Layered
    start: Chunks  # of nodes without edges, with the columns that the model reads
    graph: CscGraph
    device: torch.device
    room: int = 0  # nodes of the largest chunk

    @classmethod
    def of(cls, model: Layered, start: Chunks) -> RowsOnDevice | None:
        """Return the computation; None if the model, or a column that it reads, is elsewhere."""
        assert isinstance(model, nn.Module)
        graph = start.sampler.graph.in_one_piece("layers on a device")
        parameter, specs = next(model.parameters(), None), start.features.specs
        if parameter is None or parameter.device != graph.frontier_device or start.columns.of_edges:
            return None
        names = [(t, name) for t, of_type in start.columns.of_nodes.items() for name in of_type]
        is_there = all(t in specs and name in specs[t] for t, name in names)
        return cls(model, start, graph, parameter.device) if is_there else None

    def limits(self, given: ChunkLimits) -> ChunkLimits:
        """Return limits under which a chunk fills a GPU."""
        return ChunkLimits(max(given.nodes, LEAST.nodes), max(given.edges, LEAST.edges))

    def with_room(self, stages: Sequence[Sequence[Stage]], limits: ChunkLimits) -> RowsOnDevice | None:
        """Return the computation of these stages; None if the device has not enough memory."""
        assert isinstance(self.model, nn.Module)
        with evaluating(self.model):
            encoded = {t: self._encoded(t, torch.arange(min(1, n))) for t, n in self.graph.counts.items()}
        first = {t: rows for t, rows in encoded.items() if rows is not None}
        if any(isinstance(rows, LazyRows) for rows in first.values()):
            return None  # sparse rows would become dense
        counts, edges = self.graph.counts, sum(csc.num_edges for csc in self.graph.edges.values())
        sizes = [sum(counts[t] * _row_bytes(rows) for t, rows in first.items())]
        sizes += [sum(counts[s.node_type] * s.row_bytes for s in layer) for layer in stages]
        widest = max(map(_row_bytes, (*first.values(), *(s.like for layer in stages for s in layer))))
        room = max((s.size(c) for layer in stages for s in layer for c in range(s.num_chunks)), default=0)
        if max(counts.values(), default=0) + _padded(room) > MOST_ROWS:
            return None
        needed = max((before + after for before, after in pairwise(sizes)), default=0)
        needed += (_COPIES * room + min(limits.edges, edges)) * widest  # a message per edge
        return replace(self, room=room) if needed <= _free_bytes(self.device) else None

    def selected(self) -> AbstractContextManager[object]:
        """Make the device the current one of this thread while the block runs."""
        streams = streams_of(self.device)
        return nullcontext() if streams is None else streams.selected()

    def encoded(self) -> dict[NodeType, RowTable]:
        """Compute the first layer's input of all nodes."""
        tables: dict[NodeType, RowTable] = {}
        for node_type, count in self.graph.counts.items():
            for nodes in torch.arange(count).split(max(1, self.room)):
                rows = self._encoded(node_type, nodes)
                if rows is None:
                    break
                if node_type not in tables:
                    tables[node_type] = RowTable.empty(rows, count, self.room, self.device)
                tables[node_type].rows[nodes[0] : nodes[-1] + 1] = rows
        return tables

    def _encoded(self, node_type: NodeType, nodes: Tensor) -> Tensor | None:
        return self.model.encode(self.start.batch(node_type, nodes)).get(node_type)

    def tables(self, layer: Sequence[Stage]) -> dict[NodeType, RowTable]:
        """Allocate the rows of a layer."""
        counts = self.graph.counts
        return {
            s.node_type: RowTable.empty(s.like, counts[s.node_type], self.room, self.device) for s in layer
        }

    def chunks(self, sampler: NeighborSampler, tables: Mapping[NodeType, RowTable]) -> DeviceChunks:
        """Return the chunks of the layer after the rows in `tables`; the sampler draws its neighbors."""
        (hop,) = sampler.hops
        return DeviceChunks(self.graph, hop, tables, self._degrees(sampler))

    def _degrees(self, sampler: NeighborSampler) -> Degrees | None:
        hop = sampler.degree_hop
        if hop is None:
            return None
        nodes = {t: Frontier(torch.arange(n, device=self.device)) for t, n in self.graph.counts.items()}
        return counted_degrees(nodes, self.graph.sample_hop, hop, DrawKey(0))


def _row_bytes(like: Tensor) -> int:
    return like.shape[1:].numel() * like.element_size()


def _free_bytes(device: torch.device) -> float:
    return memory_of(str(device)).free().device_room if device.type == "cuda" else math.inf
