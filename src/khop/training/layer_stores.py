"""Rows of a stage in memory: this process's own, or one copy for all ranks of a machine."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.distributed.group import Group
from khop.features.store import FeatureStore
from khop.schema import NodeType
from khop.training.stages import Rows, Stage, row_table, write_rows


@dataclass(frozen=True)
class Memory:
    """A shelf that holds rows in memory, once per machine where the ranks are all on one."""

    group: Group

    def open(self, stage: Stage) -> Rows:
        """Shared memory where several ranks can share it, else a tensor in each."""
        group = self.group
        if group.world_size > 1 and group.is_of_one_machine and stage.count * stage.row_bytes:
            shared = SharedRows.opened(stage, group)
            if shared is not None:
                return shared
        return OwnRows(stage, group)

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """The rows: all of them are here."""
        return row_table(rows)

    def release(self, layer: int) -> None:
        """Nothing: rows are freed when nobody reads them."""


class OwnRows:
    """Rows that every rank holds for itself, and gets from the others when all is computed."""

    def __init__(self, stage: Stage, group: Group) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._group = group
        self._out = stage.like.new_empty((stage.count, *stage.like.shape[1:]))
        self._is_own = torch.zeros(stage.num_chunks, dtype=torch.uint8)

    def put(self, chunk: int, rows: Tensor) -> None:
        """Copy them into place."""
        self._out[self._stage.span(chunk)] = rows
        self._is_own[chunk] = 1

    def finished(self) -> Tensor:
        """Every chunk, from the rank that has computed it."""
        if self._group.world_size > 1 and self._stage.count:
            owners = self._group.gather(self._is_own).argmax(0).tolist()
            self._group.share_rows([self._out[self._stage.span(chunk)] for chunk in self.missing], owners)
        return self._out

    def close(self) -> None:
        """Nothing is held that Python does not free."""


class SharedRows:
    """Rows in one piece of memory that all ranks of a machine have mapped.

    It has no name, so that nothing can be left behind: it is gone with the last process that has it.
    """

    def __init__(self, stage: Stage, group: Group, descriptor: int) -> None:
        self.missing = range(stage.num_chunks)
        self._stage = stage
        self._group = group
        self._descriptor = descriptor

    @classmethod
    def opened(cls, stage: Stage, group: Group) -> SharedRows | None:
        """Rank 0 makes it, the others open it; None where one of them cannot, as in another container."""
        descriptor, path = -1, None
        if group.rank == 0:
            descriptor = os.memfd_create("khop-rows")
            os.ftruncate(descriptor, stage.count * stage.row_bytes)
            path = f"/proc/{os.getpid()}/fd/{descriptor}".encode()
        path = group.share_bytes(path)
        if group.rank > 0:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:  # told to the others, who then do without as well
                descriptor = -1
        if bool((group.gather(torch.tensor([descriptor])) >= 0).all()):
            return cls(stage, group, descriptor)
        if descriptor >= 0:
            os.close(descriptor)
        return None

    def put(self, chunk: int, rows: Tensor) -> None:
        """Copy them into place."""
        write_rows(self._descriptor, rows, self._stage.span(chunk).start * self._stage.row_bytes)

    def finished(self) -> Tensor:
        """All rows, mapped."""
        self._group.barrier()
        stage = self._stage
        pages = mmap.mmap(self._descriptor, stage.count * stage.row_bytes)
        return torch.frombuffer(pages, dtype=stage.like.dtype).view(stage.count, *stage.like.shape[1:])

    def close(self) -> None:
        """The mapping stays for as long as the rows are used."""
        os.close(self._descriptor)
