"""Stages of layer-wise inference, and their division into chunks of nodes.

A chunk has a limited number of nodes and of edges. The rows of a stage are in memory, one copy per process
or one shared copy per machine.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from khop.arguments import checked_field, whole_number
from khop.distributed.processes.group import Group
from khop.errors import Unsupported
from khop.graph.features.store import FeatureStore
from khop.graph.features.table import FeatureTable
from khop.graph.npy import ArrayEntry, unchecked_entry
from khop.graph.store import GraphStore
from khop.schema import EdgeType, NodeType

VALUES = "values"  # column of a layer's output as the next layer's input


@dataclass(frozen=True)
class Stage:
    """One layer's rows of one node type. The assignment of chunks to ranks never changes a bit of them."""

    layer: int
    node_type: NodeType
    count: int
    chunk_size: int
    like: Tensor  # (0, ...): dtype and width of the rows
    nodes: Tensor | None = None  # int64 (count); None: all nodes of the type, in order
    times: Tensor | None = None  # int64 (count): time limit of each node, for temporal samplers
    pieces: tuple[int, ...] = ()  # bounds of the ranges of rows; no chunk crosses a bound
    bounded: tuple[int, ...] | None = None  # first row of every chunk of bounded edges, and the end

    def __post_init__(self) -> None:
        checked_field(self, "chunk_size", whole_number, 1)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of every chunk, and the end."""
        if self.bounded is not None:
            return self.bounded
        ranges = pairwise(self.pieces or (0, self.count))
        return (*(first for one_range in ranges for first in range(*one_range, self.chunk_size)), self.count)

    @property
    def num_chunks(self) -> int:
        """Number of chunks; the last chunk of a range may be smaller."""
        return len(self.starts) - 1

    @property
    def entry(self) -> ArrayEntry:
        """Description of the rows as an array in a file."""
        return unchecked_entry(
            str(self.like.dtype).removeprefix("torch."), (self.count, *self.like.shape[1:])
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.like.shape[1:]) * self.like.element_size()

    def span(self, chunk: int) -> slice:
        """Rows of a chunk."""
        return slice(self.starts[chunk], self.starts[chunk + 1])

    def size(self, chunk: int) -> int:
        """Number of rows of a chunk."""
        return self.starts[chunk + 1] - self.starts[chunk]

    def nodes_of(self, rows: slice) -> Tensor:
        """Return the nodes of some rows, int64."""
        return torch.arange(rows.start, rows.stop) if self.nodes is None else self.nodes[rows]

    def times_of(self, rows: slice) -> Tensor | None:
        """Return the time limits of some rows' nodes, int64; None if the stage has none."""
        return None if self.times is None else self.times[rows]


def row_table(rows: Mapping[NodeType, Tensor]) -> FeatureTable:
    """Make a feature table of all nodes' rows, as input of chunks."""
    return FeatureTable({node_type: {VALUES: of_type} for node_type, of_type in rows.items()})


def write_rows(descriptor: int, rows: Tensor, offset: int) -> None:
    """Write all bytes of the rows, on the CPU, at `offset` of a file; OSError if there is no space."""
    # pwrite, not assignment to a mapping, which would end the process by a signal if the disk is full.
    content = rows.contiguous().view(-1).view(torch.uint8).numpy().data
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


class StageRows(Protocol):
    """Storage for a stage's rows: several ranks write it, and it is read when all rows are there."""

    @property
    def missing(self) -> range | list[int]:
        """Chunks still to be computed; the same on every rank."""
        ...

    def put(self, chunk: int, rows: Tensor) -> None:
        """Store the rows of one chunk, from any device."""
        ...

    def finished(self) -> Tensor:
        """Return (count, ...) on the CPU, after every rank has put its rows. Collective.

        A layer store may leave rows on the rank that computed them. The result then has this rank's rows
        only, in order.
        """
        ...

    def close(self) -> None:
        """End the writing, whether or not all rows were put."""
        ...


class LayerStore(Protocol):
    """Storage for the rows of one stage after another."""

    def open(self, stage: Stage) -> StageRows:
        """Open the storage of a stage. Collective."""
        ...

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """Return a layer's finished rows as the next layer's input: column VALUES, by node id."""
        ...

    def release(self, layer: int) -> None:
        """Free the rows of a layer; all ranks have read them."""
        ...


@dataclass(frozen=True)
class PartOrder:
    """A permutation of rows, and its inverse."""

    order: Tensor | None = None  # int64 (rows); None: the given order

    @classmethod
    def of(cls, nodes: Tensor | None, bounds: tuple[int, ...]) -> PartOrder:
        """Order nodes by the partitions in `bounds`; None means all nodes, already in that order."""
        if nodes is None or len(bounds) == 2 or _is_ascending(nodes):
            return cls()
        return cls(nodes.argsort(stable=True))

    def there(self, rows: Tensor) -> Tensor:
        """Reorder rows from the order of the nodes to the grouped order."""
        return rows if self.order is None else rows[self.order]

    def back(self, rows: Tensor) -> Tensor:
        """Reorder rows from the grouped order back to the order of the nodes."""
        return rows if self.order is None else rows[self.order.argsort()]


def pieces_of(nodes: Tensor | None, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return where each partition's nodes begin, and the end; () if the nodes are not in ascending order."""
    if nodes is None:
        return bounds
    if len(bounds) == 2 or not _is_ascending(nodes):
        return ()
    return tuple(torch.searchsorted(nodes, torch.tensor(bounds)).tolist())


def _is_ascending(nodes: Tensor) -> bool:
    return bool((nodes[1:] >= nodes[:-1]).all())


CHUNK_EDGES = 1 << 20  # a batch of 128 floats per node then has at most 0.5 GB
ROWS_AT_ONCE = 1 << 14  # rows whose numbers of edges are in memory

EdgesOf = Callable[[slice], Tensor]  # numbers of edges of some rows, int64


@dataclass(frozen=True)
class ChunkLimits:
    """Maximum nodes and in-edges of a chunk. A node with more edges is a separate chunk."""

    nodes: int
    edges: int = CHUNK_EDGES

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", whole_number("chunk_size", self.nodes, 1))
        object.__setattr__(self, "edges", whole_number("chunk_edges", self.edges, 1))


def chunk_starts(pieces: Sequence[int], limits: ChunkLimits, edges_of: EdgesOf) -> tuple[int, ...]:
    """Return the first row of every chunk, and the end; no chunk crosses a bound of `pieces`.

    They only depend on the numbers of edges, not on where edges are stored.
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


@dataclass(frozen=True)
class MemoryStore:
    """Layer store in memory, with one copy per machine if all ranks are on one machine.

    `rows` may be an existing tensor on any device, if the group has only one rank.
    """

    group: Group
    rows: Mapping[NodeType, Tensor] | None = None

    def open(self, stage: Stage) -> StageRows:
        """Use shared memory if several ranks can share it, else one tensor per rank."""
        group = self.group
        if self.rows is not None:
            return OwnRows(stage, group, self.rows[stage.node_type])
        if group.world_size > 1 and group.is_of_one_machine and stage.count * stage.row_bytes:
            shared = SharedRows.opened(stage, group)
            if shared is not None:
                return shared
        return OwnRows(stage, group)

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """Return a store over the rows, all of which are local."""
        return row_table(rows)

    def release(self, layer: int) -> None:
        """Do nothing: Python frees rows after their last use."""


class OwnRows:
    """Rows with a copy on every rank; chunks are broadcast when all are computed."""

    def __init__(self, stage: Stage, group: Group, out: Tensor | None = None) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._group = group
        self._out = stage.like.new_empty((stage.count, *stage.like.shape[1:])) if out is None else out
        self._is_own = torch.zeros(stage.num_chunks, dtype=torch.uint8)

    def put(self, chunk: int, rows: Tensor) -> None:
        """Copy the rows into place."""
        self._out[self._stage.span(chunk)] = rows
        self._is_own[chunk] = 1

    def finished(self) -> Tensor:
        """Broadcast every chunk from the rank that computed it; return all rows."""
        if self._group.world_size > 1 and self._stage.count:
            owners = self._group.gather(self._is_own).argmax(0).tolist()
            self._group.share_rows([self._out[self._stage.span(chunk)] for chunk in self.missing], owners)
        return self._out

    def close(self) -> None:
        """Do nothing: Python frees all resources."""


class SharedRows:
    """Rows in shared memory that all ranks of a machine have mapped.

    The memory has no name, so it is freed with the last process that uses it.
    """

    def __init__(self, stage: Stage, group: Group, descriptor: int) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._group = group
        self._descriptor = descriptor

    @classmethod
    def opened(cls, stage: Stage, group: Group) -> SharedRows | None:
        """Create the memory on rank 0 and open it on the others; None if a rank cannot (other container)."""
        descriptor, path = -1, None
        if group.rank == 0:
            descriptor = os.memfd_create("khop-rows")
            os.ftruncate(descriptor, stage.count * stage.row_bytes)
            path = f"/proc/{os.getpid()}/fd/{descriptor}".encode()
        path = group.share_bytes(path)
        if group.rank > 0:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:  # the other ranks see this below, and use no shared memory either
                descriptor = -1
        if bool((group.gather(torch.tensor([descriptor])) >= 0).all()):
            return cls(stage, group, descriptor)
        if descriptor >= 0:
            os.close(descriptor)
        return None

    def put(self, chunk: int, rows: Tensor) -> None:
        """Copy the rows into place."""
        write_rows(self._descriptor, rows.cpu(), self._stage.span(chunk).start * self._stage.row_bytes)

    def finished(self) -> Tensor:
        """Return all rows, memory-mapped."""
        self._group.barrier()
        stage = self._stage
        pages = mmap.mmap(self._descriptor, stage.count * stage.row_bytes)
        return torch.frombuffer(pages, dtype=stage.like.dtype).view(stage.count, *stage.like.shape[1:])

    def close(self) -> None:
        """Close the descriptor; the mapping stays while the rows are in use."""
        os.close(self._descriptor)
