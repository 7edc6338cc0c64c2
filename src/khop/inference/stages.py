"""Work of a layer-wise pass over all nodes: stages, which are split into chunks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.features.store import FeatureStore
from khop.features.table import FeatureTable
from khop.graph.npy import ArrayEntry, unchecked_entry
from khop.schema import NodeType

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
        whole_number("chunk_size", self.chunk_size, 1)

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
    """Write all bytes of the rows at `offset` of a file; OSError if there is no space."""
    # pwrite, not assignment through a mapping: on a full disk a mapping ends the process by a signal.
    content = rows.contiguous().view(-1).view(torch.uint8).numpy().data
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


class Rows(Protocol):
    """Storage for a stage's rows: several ranks write it, and it is read when all rows are there."""

    @property
    def missing(self) -> range | list[int]:
        """Chunks still to be computed; the same on every rank."""
        ...

    def put(self, chunk: int, rows: Tensor) -> None:
        """Store the rows of one chunk."""
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

    def open(self, stage: Stage) -> Rows:
        """Open the storage of a stage. Collective."""
        ...

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """Return a layer's finished rows as the next layer's input: column VALUES, by node id."""
        ...

    def release(self, layer: int) -> None:
        """Free the rows of a layer; all ranks have read them."""
        ...
