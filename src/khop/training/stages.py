"""What has to be computed to bring a model's layers over all nodes: stages, which fall into chunks."""

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

VALUES = "values"  # the column that one layer's output is to the next


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
    pieces: tuple[int, ...] = ()  # where stretches of rows begin and the last ends: no chunk is of two

    def __post_init__(self) -> None:
        whole_number("chunk_size", self.chunk_size, 1)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of every chunk, and the end."""
        stretches = pairwise(self.pieces or (0, self.count))
        return (*(first for stretch in stretches for first in range(*stretch, self.chunk_size)), self.count)

    @property
    def num_chunks(self) -> int:
        """So many make up the stage; the last of a stretch may be smaller."""
        return len(self.starts) - 1

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
        return slice(self.starts[chunk], self.starts[chunk + 1])

    def size(self, chunk: int) -> int:
        """How many rows a chunk has."""
        return self.starts[chunk + 1] - self.starts[chunk]

    def nodes_of(self, rows: slice) -> Tensor:
        """int64: the nodes of some rows."""
        return torch.arange(rows.start, rows.stop) if self.nodes is None else self.nodes[rows]

    def times_of(self, rows: slice) -> Tensor | None:
        """Their limits."""
        return None if self.times is None else self.times[rows]


def row_table(rows: Mapping[NodeType, Tensor]) -> FeatureTable:
    """Rows of all nodes as what chunks read."""
    return FeatureTable({node_type: {VALUES: of_type} for node_type, of_type in rows.items()})


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
        """(count, ...) on the CPU, once every rank has put what it has computed. Collective.

        A shelf may also leave rows where they were computed: then it is this rank's, in order.
        """
        ...

    def close(self) -> None:
        """Nothing more is put, whether or not all is there."""
        ...


class LayerStore(Protocol):
    """Makes room for the rows of stage after stage."""

    def open(self, stage: Stage) -> Rows:
        """Collective."""
        ...

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """What chunks read of a layer's finished rows, in the column VALUES, by the ids of nodes."""
        ...

    def release(self, layer: int) -> None:
        """The rows of this layer are not needed any more; all ranks have read them."""
        ...
