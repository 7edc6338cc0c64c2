"""Rows of stages in files of a folder, with a journal: what is on the disk is not computed again."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from khop.distributed.group import Group
from khop.features.store import FeatureStore
from khop.graph.atomic import refuse_dangling
from khop.graph.npy import array_header, map_array
from khop.schema import NodeType
from khop.training.stages import Stage, row_table, write_rows

FLUSH_S = 1.0  # what a rank has computed since is computed again after it was killed
_FACTS, _JOURNALS = "begun.json", "journals"


@dataclass(frozen=True)
class WorkFolder:
    """A shelf of files, which several machines may share.

    A chunk is noted in a journal after its rows are on the disk. A process that is killed at any moment
    leaves a folder from which any number of ranks goes on.
    """

    path: Path
    group: Group
    journal: Path  # this rank's own
    written: Mapping[str, frozenset[int]]  # stage -> chunks that earlier attempts have put on the disk

    def open(self, stage: Stage) -> FileRows:
        """The file of the stage, with the chunks in it that are there."""
        missing = sorted(set(range(stage.num_chunks)) - self._chunks(stage))
        return FileRows(stage, self.group, self.file(stage), self.journal, missing)

    def store(self, layer: Sequence[Stage], rows: Mapping[NodeType, Tensor]) -> FeatureStore:
        """The files, mapped."""
        return row_table(rows)

    def release(self, layer: int) -> None:
        """Remove the layer's files."""
        if self.group.rank == 0:
            for file in self.path.glob(f"{layer}-*.npy"):
                file.unlink()

    def file(self, stage: Stage) -> Path:
        """Where the rows of a stage are."""
        return self.path / f"{_name(stage)}.npy"

    def first_layer(self, layers: Sequence[Sequence[Stage]]) -> int:
        """The layer to go on from: the last one that is whole, to be read by the next; else the first."""
        return next((index for index in reversed(range(len(layers))) if self.is_whole(layers[index])), 0)

    def is_whole(self, layer: Sequence[Stage]) -> bool:
        """Whether every row of a layer is on the disk."""
        return all(len(self._chunks(stage)) == stage.num_chunks for stage in layer)

    def _chunks(self, stage: Stage) -> frozenset[int]:
        file = self.file(stage)
        is_there = file.is_file() and file.stat().st_size == stage.entry.bytes
        return self.written.get(_name(stage), frozenset()) if is_there else frozenset()


class FileRows:
    """Rows of a stage in a .npy file that all ranks write into."""

    def __init__(self, stage: Stage, group: Group, file: Path, journal: Path, missing: list[int]) -> None:
        self.missing = missing
        self._stage = stage
        self._group = group
        self._file = file
        self._journal = journal
        self._noted: list[int] = []  # chunks that were put since the last flush
        self._flushed_at = time.monotonic()
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        entry = stage.entry
        # Every rank does it, with the same bytes: nobody has to wait for another.
        os.ftruncate(self._descriptor, entry.bytes)
        os.pwrite(self._descriptor, array_header(entry.dtype, entry.shape), 0)
        self._start = entry.bytes - entry.data_bytes

    def put(self, chunk: int, rows: Tensor) -> None:
        """Write them into place; every now and then bring them to the disk and note that in the journal."""
        offset = self._start + self._stage.span(chunk).start * self._stage.row_bytes
        write_rows(self._descriptor, rows, offset)
        self._noted.append(chunk)
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush()

    def finished(self) -> Tensor:
        """All rows, mapped."""
        self._flush()
        self._group.barrier()
        rows = map_array(self._file, self._stage.entry)
        self._group.barrier()  # until all have it mapped, nobody may give it another name, or remove it
        return rows

    def close(self) -> None:
        """What was put so far counts, also where the rest did not come."""
        try:
            self._flush()
        finally:
            os.close(self._descriptor)

    def _flush(self) -> None:
        if self._noted:
            os.fsync(self._descriptor)
            line = json.dumps({"stage": _name(self._stage), "chunks": self._noted}) + "\n"
            with self._journal.open("ab") as journal:
                journal.write(line.encode())
                journal.flush()
                os.fsync(journal.fileno())
            self._noted = []
        self._flushed_at = time.monotonic()


@contextmanager
def work_folder(path: Path, facts: Mapping[str, str], group: Group) -> Iterator[WorkFolder]:
    """The folder, made or taken up where it was left; it stays unless `remove` is called. Collective.

    ValueError where it was begun with other facts, where another process has it, or where a rank does not
    see it.
    """
    with _held(path, facts, group) as found:
        told = group.share_bytes(json.dumps(found).encode() if found is not None else None)
        if not (path / _FACTS).is_file():
            raise ValueError(
                f"{path}: rank {group.rank} does not see this folder of rank 0's; "
                "write to a place that all machines share"
            )
        written = {name: frozenset(chunks) for name, chunks in json.loads(told).items()}
        journal = path / _JOURNALS / f"{uuid.uuid4().hex}.jsonl"
        yield WorkFolder(path, group, journal, written)


def remove(folder: WorkFolder) -> None:
    """The result stands elsewhere: nothing of the folder is needed."""
    if folder.group.rank == 0:
        shutil.rmtree(folder.path)


@contextmanager
def _held(path: Path, facts: Mapping[str, str], group: Group) -> Iterator[dict[str, list[int]] | None]:
    """On rank 0 what the journals say, with the folder locked for as long as the block runs."""
    if group.rank > 0:
        yield None
        return
    refuse_dangling(path)
    (path / _JOURNALS).mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{path}: another process is at work in it; wait for it, or write to another name"
            ) from None
        _check_facts(path, facts)
        yield _journalled(path)
    finally:
        os.close(lock)


def _check_facts(path: Path, facts: Mapping[str, str]) -> None:
    file = path / _FACTS
    if not file.exists():
        begun = file.with_suffix(".new")
        begun.write_text(json.dumps(dict(facts)))
        begun.replace(file)
        return
    before = json.loads(file.read_text())
    for name in facts:
        if before.get(name) != facts[name]:
            raise ValueError(
                f"{path}: was begun with another {name} ({before.get(name)}, now {facts[name]}); go on as it "
                "was begun, remove the folder, or write to another name"
            )


def _journalled(path: Path) -> dict[str, list[int]]:
    """Stage -> the chunks that are on the disk, as all journals have it."""
    found: dict[str, list[int]] = {}
    for journal in sorted((path / _JOURNALS).glob("*.jsonl")):
        for line in journal.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # the last line of a process that was killed while it wrote
                continue
            found.setdefault(record["stage"], []).extend(record["chunks"])
    return found


def _name(stage: Stage) -> str:
    return f"{stage.layer}-{quote(stage.node_type, safe='')}"
