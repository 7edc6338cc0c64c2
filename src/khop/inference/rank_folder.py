"""Rows of stages in one folder per rank, for ranks without a shared file system."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from khop.exchange.lanes import Lanes
from khop.features.store import FeatureStore
from khop.inference.collective_chunks import rank_bounds, rows_of_ranks, shares
from khop.inference.stages import Rows, Stage
from khop.inference.work_folder import WorkFolder, work_folder
from khop.runtime.group import ALONE, Group
from khop.schema import NodeType


@dataclass(frozen=True)
class RankFolder:
    """Layer store in files with the rows that this rank computes; other ranks request the rows they need."""

    folder: WorkFolder
    lanes: Lanes

    def open(self, stage: Stage) -> RankRows:
        """Open the file of this rank's rows, with the chunks that it already has."""
        group = self.lanes.group
        return RankRows(self.folder.open(own_stage(stage, group)), stage, group)

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """Return a store over the files of all ranks."""
        return rows_of_ranks(layer, rows, self.lanes)

    def release(self, layer: int) -> None:
        """Remove the layer's files."""
        self.folder.release(layer)

    def first_layer(self, layers: Sequence[Sequence[Stage]]) -> int:
        """Layer from which to resume: the last one complete on every rank, else the first. Collective."""
        group = self.lanes.group
        own = [[own_stage(stage, group) for stage in layer] for layer in layers]
        flags = torch.tensor([self.folder.is_whole(layer) for layer in own])
        whole = group.gather(flags.byte()).all(0).nonzero().flatten().tolist()
        return whole[-1] if whole else 0


class RankRows:
    """A contiguous range of a stage's rows, in a file."""

    def __init__(self, rows: Rows, stage: Stage, group: Group) -> None:
        self._rows = rows
        self._group = group
        self._first = shares(stage, group.world_size)[group.rank].start
        missing = torch.zeros(stage.num_chunks, dtype=torch.uint8)
        missing[torch.tensor([self._first + chunk for chunk in rows.missing], dtype=torch.int64)] = 1
        self.missing = group.gather(missing).any(0).nonzero().flatten().tolist()

    def put(self, chunk: int, rows: Tensor) -> None:
        """Write the rows into place."""
        self._rows.put(chunk - self._first, rows)

    def finished(self) -> Tensor:
        """Return this rank's mapped rows after all ranks are done: inputs may then be removed."""
        rows = self._rows.finished()
        self._group.barrier()
        return rows

    def close(self) -> None:
        """Close the file; chunks put so far are kept, even if others are missing."""
        self._rows.close()


def own_stage(stage: Stage, group: Group) -> Stage:
    """Restrict a stage to this rank's rows, in the same chunks."""
    bounds = rank_bounds(stage, group.world_size)
    first, last = bounds[group.rank], bounds[group.rank + 1]
    inner = {row - first for row in stage.pieces if first < row < last}
    bounded = None
    if stage.bounded is not None:
        bounded = tuple(row - first for row in stage.bounded if first <= row <= last)
    pieces = (0, *sorted(inner), last - first)
    return replace(stage, count=last - first, nodes=None, times=None, pieces=pieces, bounded=bounded)


@contextmanager
def rank_folder(
    path: Path, facts: Mapping[str, str], layers: Sequence[Sequence[Stage]], lanes: Lanes
) -> Iterator[RankFolder]:
    """Create this rank's folder, or resume it if the number of ranks is the same."""
    group = lanes.group
    facts = {**facts, "place among the ranks": f"{group.rank} of {group.world_size}"}
    own = [[own_stage(stage, group) for stage in layer] for layer in layers]
    with work_folder(path, facts, own, ALONE) as folder:
        yield RankFolder(folder, lanes)


def is_seen_by_all(folder: Path, group: Group) -> bool:
    """Return True if a file that rank 0 creates in the folder is visible to every rank. Collective."""
    name = group.share_bytes(f".khop-{uuid.uuid4().hex}".encode() if group.rank == 0 else None).decode()
    if group.rank == 0:
        (folder / name).touch()
    group.barrier()
    is_there = group.gather(torch.tensor([os.path.exists(folder / name)]).byte())
    if group.rank == 0:
        (folder / name).unlink()
    return bool(is_there.all())
