"""Rows of a stage in memory: one copy per process, or one copy for all ranks of a machine."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.features.store import FeatureStore
from khop.inference.stages import Rows, Stage, row_table, write_rows
from khop.runtime.group import Group
from khop.schema import NodeType


@dataclass(frozen=True)
class Memory:
    """Layer store in memory, with one copy per machine if all ranks are on one machine."""

    group: Group

    def open(self, stage: Stage) -> Rows:
        """Use shared memory if several ranks can share it, else one tensor per rank."""
        group = self.group
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
    """Rows of which every rank holds a copy; chunks are exchanged when all are computed."""

    def __init__(self, stage: Stage, group: Group) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._group = group
        self._out = stage.like.new_empty((stage.count, *stage.like.shape[1:]))
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
    """Rows in one block of memory that all ranks of a machine have mapped.

    The memory has no name, so nothing can be left behind: the last process that has it frees it.
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
        write_rows(self._descriptor, rows, self._stage.span(chunk).start * self._stage.row_bytes)

    def finished(self) -> Tensor:
        """Return all rows, memory-mapped."""
        self._group.barrier()
        stage = self._stage
        pages = mmap.mmap(self._descriptor, stage.count * stage.row_bytes)
        return torch.frombuffer(pages, dtype=stage.like.dtype).view(stage.count, *stage.like.shape[1:])

    def close(self) -> None:
        """Close the descriptor; the mapping stays while the rows are in use."""
        os.close(self._descriptor)
