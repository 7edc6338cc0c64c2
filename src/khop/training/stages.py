"""What has to be computed to bring a model's layers over all nodes: stages, which fall into chunks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from khop.graph.npy import ArrayEntry, unchecked_entry
from khop.schema import NodeType


@dataclass(frozen=True)
class Stage:
    """One layer's rows of one node type. Which rank computes which chunk of it changes no bit of them."""

    layer: int
    node_type: NodeType
    count: int
    chunk_size: int
    like: Tensor  # (0, ...): dtype and width of the rows
    nodes: Tensor | None = None  # int64 (count); None: all of the type, in order
    times: Tensor | None = None  # int64 (count), the limit of each node, where a sampler needs them

    @property
    def num_chunks(self) -> int:
        """So many make up the stage; the last may be smaller."""
        return -(-self.count // self.chunk_size)

    @property
    def entry(self) -> ArrayEntry:
        """The rows as an array in a file."""
        return unchecked_entry(
            str(self.like.dtype).removeprefix("torch."), (self.count, *self.like.shape[1:])
        )

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return math.prod(self.like.shape[1:]) * self.like.element_size()

    def span(self, chunk: int) -> slice:
        """The rows of a chunk."""
        start = chunk * self.chunk_size
        return slice(start, min(start + self.chunk_size, self.count))

    def size(self, chunk: int) -> int:
        """How many rows a chunk has."""
        span = self.span(chunk)
        return int(span.stop - span.start)

    def nodes_of(self, chunk: int) -> Tensor:
        """int64: the nodes of a chunk."""
        span = self.span(chunk)
        return torch.arange(span.start, span.stop) if self.nodes is None else self.nodes[span]

    def times_of(self, chunk: int) -> Tensor | None:
        """Their limits."""
        return None if self.times is None else self.times[self.span(chunk)]


def write_rows(descriptor: int, rows: Tensor, offset: int) -> None:
    """Write all bytes of the rows at `offset` of a file; OSError where there is no space for them."""
    # Written, not assigned through a mapping: a disk that is full would then end the process by a signal.
    content = rows.contiguous().view(-1).view(torch.uint8).numpy().data
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


class Rows(Protocol):
    """Where the rows of a stage are put, by several ranks, and read when all are there."""

    @property
    def missing(self) -> range | list[int]:
        """The chunks that are still to be computed; the same on every rank."""
        ...

    def put(self, chunk: int, rows: Tensor) -> None:
        """Take the rows of one chunk."""
        ...

    def finished(self) -> Tensor:
        """(count, ...) on the CPU, once every rank has put what it has computed. Collective."""
        ...

    def close(self) -> None:
        """Nothing more is put, whether or not all is there."""
        ...


class Shelf(Protocol):
    """Makes room for the rows of stage after stage."""

    def open(self, stage: Stage) -> Rows:
        """Collective."""
        ...

    def release(self, layer: int) -> None:
        """The rows of this layer are not needed any more; all ranks have read them."""
        ...
