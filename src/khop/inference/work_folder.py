"""Rows of inference stages in files, with journals to resume an interrupted run.

Without a shared file system, each rank has a folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.processes.group import ALONE, Group
from khop.graph.atomic import refuse_dangling
from khop.graph.features.store import FeatureStore
from khop.graph.npy import array_header, map_array
from khop.inference.chunks import rank_bounds, rows_of_ranks, shares
from khop.inference.stages import Stage, StageRows, row_table, write_rows
from khop.kernels.philox import digest
from khop.schema import NodeType

FLUSH_S = 1.0  # seconds between flushes; a killed rank computes later rows again
_FACTS, _JOURNALS = "begun.json", "journals"


@dataclass(frozen=True)
class WorkFolder:
    """Layer store in files, which several machines may share.

    A chunk is recorded in a journal, with a digest, after its rows are on disk. If a process is killed at any
    time, any number of ranks can resume from the folder. Rows that do not match their digest are recomputed.
    """

    path: Path
    group: Group
    journal: Path  # journal of this rank
    written: Mapping[str, frozenset[int]]  # stage -> chunks that earlier attempts have written to disk

    def open(self, stage: Stage) -> FileRows:
        """Open the file of the stage, with the chunks that it already has."""
        missing = sorted(set(range(stage.num_chunks)) - self._chunks(stage))
        return FileRows(stage, self.group, self.file(stage), self.journal, missing)

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """Return a store over the mapped files."""
        return row_table(rows)

    def release(self, layer: int) -> None:
        """Remove the layer's files."""
        if self.group.rank == 0:
            for file in self.path.glob(f"{layer}-*.npy"):
                file.unlink()

    def file(self, stage: Stage) -> Path:
        """Path of the file with the rows of a stage."""
        return self.path / f"{_name(stage)}.npy"

    def first_layer(self, layers: Sequence[Sequence[Stage]]) -> int:
        """Layer from which to resume: the last complete one, to be read by the next; else the first."""
        return next((index for index in reversed(range(len(layers))) if self.is_whole(layers[index])), 0)

    def is_whole(self, layer: Sequence[Stage]) -> bool:
        """Return True if every row of a layer is on disk."""
        return all(len(self._chunks(stage)) == stage.num_chunks for stage in layer)

    def _chunks(self, stage: Stage) -> frozenset[int]:
        is_there = _has_size(self.file(stage), stage)
        return self.written.get(_name(stage), frozenset()) if is_there else frozenset()


class FileRows:
    """Rows of a stage in a .npy file that all ranks write; a thread flushes it while rows are computed."""

    def __init__(self, stage: Stage, group: Group, file: Path, journal: Path, missing: list[int]) -> None:
        self.missing = missing
        self._stage = stage
        self._group = group
        self._file = file
        self._journal = journal
        self._noted: dict[int, str] = {}  # chunks put since the last flush began, and digests of their rows
        self._flushed_at = time.monotonic()
        self._flusher = ThreadPoolExecutor(1, "khop-flush")
        self._flushing: Future[None] | None = None
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        entry = stage.entry
        # Every rank writes the same bytes, so that no rank has to wait for another.
        os.ftruncate(self._descriptor, entry.bytes)
        os.pwrite(self._descriptor, array_header(entry.dtype, entry.shape), 0)
        self._start = entry.bytes - entry.data_bytes

    def put(self, chunk: int, rows: Tensor) -> None:
        """Write the rows into place; begin to flush and journal them when `FLUSH_S` seconds have passed."""
        rows = rows.cpu().contiguous()
        offset = self._start + self._stage.span(chunk).start * self._stage.row_bytes
        write_rows(self._descriptor, rows, offset)
        self._noted[chunk] = digest(rows)
        is_idle = self._flushing is None or self._flushing.done()
        if is_idle and time.monotonic() - self._flushed_at > FLUSH_S:
            self._await_flush()
            noted, self._noted = self._noted, {}
            self._flushing = self._flusher.submit(self._keep, noted)
            self._flushed_at = time.monotonic()

    def flush(self) -> None:
        """Flush and journal all rows put so far."""
        self._await_flush()
        noted, self._noted = self._noted, {}
        self._keep(noted)

    def finished(self) -> Tensor:
        """Return all rows, memory-mapped."""
        self.flush()
        self._group.barrier()
        rows = map_array(self._file, self._stage.entry)
        self._group.barrier()  # no rank may rename or remove the file before all have mapped it
        return rows

    def close(self) -> None:
        """Close the file; chunks put so far are kept, even if others are missing."""
        try:
            self.flush()
        finally:
            self._flusher.shutdown()
            os.close(self._descriptor)

    def _await_flush(self) -> None:
        """Wait for the flush of the thread; raise its error."""
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.result()

    def _keep(self, noted: Mapping[int, str]) -> None:
        if not noted:
            return
        os.fsync(self._descriptor)
        line = json.dumps({"stage": _name(self._stage), "chunks": noted}) + "\n"
        with self._journal.open("ab") as journal:
            journal.write(line.encode())
            journal.flush()
            os.fsync(journal.fileno())


@contextmanager
def work_folder(
    path: Path, facts: Mapping[str, str], layers: Sequence[Sequence[Stage]], group: Group
) -> Iterator[WorkFolder]:
    """Create the folder, or resume it; it stays on disk unless `remove` is called. Collective.

    Rank 0 verifies the rows written by earlier attempts, at several GB/s, and warns about those that do not
    match their digests. Raises ValueError if the folder was started with other facts, if another process uses
    it, or if it is not visible to a rank.
    """
    with _held(path, facts, group):
        found = _intact_chunks(path, layers) if group.rank == 0 else None
        shared = group.share_bytes(json.dumps(found).encode() if found is not None else None)
        if not (path / _FACTS).is_file():
            raise ValueError(
                f"{path}: this folder of rank 0 is not visible to rank {group.rank}; "
                "write to a file system that all machines share"
            )
        written = {name: frozenset(chunks) for name, chunks in json.loads(shared).items()}
        journal = path / _JOURNALS / f"{uuid.uuid4().hex}.jsonl"
        yield WorkFolder(path, group, journal, written)


def remove(folder: WorkFolder) -> None:
    """Remove the folder, after its result is in its final place."""
    if folder.group.rank == 0:
        shutil.rmtree(folder.path)


@contextmanager
def _held(path: Path, facts: Mapping[str, str], group: Group) -> Iterator[None]:
    """Create the folder, if it is missing, and lock it during the block, on rank 0."""
    if group.rank > 0:
        yield
        return
    refuse_dangling(path)
    (path / _JOURNALS).mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{path}: in use by another process; wait for it, or choose another name"
            ) from None
        _check_facts(path, facts)
        yield
    finally:
        os.close(lock)


def begun_facts(path: Path) -> dict[str, str]:
    """Return the facts with which a folder was started; {} if there is none."""
    file = path / _FACTS
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def _check_facts(path: Path, facts: Mapping[str, str]) -> None:
    file = path / _FACTS
    if not file.exists():
        begun = file.with_suffix(".new")
        begun.write_text(json.dumps(dict(facts)))
        begun.replace(file)
        return
    before = begun_facts(path)
    for name in facts:
        if before.get(name) != facts[name]:
            raise ValueError(
                f"{path}: was started with another {name} ({before.get(name)}, now {facts[name]}); continue "
                "with the original settings, remove the folder, or choose another name"
            )


def _intact_chunks(path: Path, layers: Sequence[Sequence[Stage]]) -> dict[str, list[int]]:
    """Stage -> chunks with rows on disk that fit the digests of the journals."""
    found: dict[str, list[int]] = {}
    noted = _noted_chunks(path)
    for stage in chain.from_iterable(layers):
        file, of_stage = path / f"{_name(stage)}.npy", noted.get(_name(stage), {})
        if not of_stage or not _has_size(file, stage):
            continue
        rows = map_array(file, stage.entry)
        intact = [chunk for chunk, stated in of_stage.items() if digest(rows[stage.span(chunk)]) == stated]
        if len(intact) < len(of_stage):
            damaged = len(of_stage) - len(intact)
            warnings.warn(
                f"{file}: {damaged} of {len(of_stage)} chunks of rows are damaged, and will be recomputed",
                stacklevel=2,
            )
        found[_name(stage)] = intact
    return found


def _noted_chunks(path: Path) -> dict[str, dict[int, str]]:
    """Read all journals: stage -> chunk -> digest of its rows."""
    found: dict[str, dict[int, str]] = {}
    for journal in sorted((path / _JOURNALS).glob("*.jsonl")):
        for line in journal.read_bytes().splitlines():
            try:
                record = json.loads(line)
                chunks = {int(chunk): str(stated) for chunk, stated in record["chunks"].items()}
                found.setdefault(record["stage"], {}).update(chunks)
            # The last line of a process that was killed while writing, damage, or a journal without digests.
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
    return found


def _has_size(file: Path, stage: Stage) -> bool:
    return file.is_file() and file.stat().st_size == stage.entry.bytes


def _name(stage: Stage) -> str:
    return f"{stage.layer}-{quote(stage.node_type, safe='')}"


@dataclass(frozen=True)
class RankFolder:
    """Layer store in files with the rows that this rank computes; other ranks request the rows they need."""

    folder: WorkFolder
    lanes: Lanes

    def open(self, stage: Stage) -> ExchangedRows:
        """Open the file of this rank's rows, with the chunks that it already has."""
        group = self.lanes.group
        return ExchangedRows(self.folder.open(own_stage(stage, group)), stage, group)

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


class ExchangedRows:
    """A contiguous range of a stage's rows, in a file."""

    def __init__(self, rows: StageRows, stage: Stage, group: Group) -> None:
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
