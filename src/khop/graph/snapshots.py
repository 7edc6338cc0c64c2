"""Snapshots of a graph folder: the graph as imported, and after each append.

A snapshot shares unchanged files with its predecessor by hard links, if the file system supports them.
`khop.compact` keeps only the newest snapshot.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.arguments import path_of
from khop.errors import REMEDY, unread
from khop.graph import layout
from khop.graph.atomic import flush_entries
from khop.graph.manifest import read_manifest
from khop.graph.npy import flush


def link_files(source: Path, target: Path, files: Iterable[str]) -> None:
    """Link files of a folder into another one, or copy them.

    Files of graph folders are never changed in place, so files can be shared.
    """
    for file in files:
        link_file(source / file, target / file)


def link_file(source: Path, target: Path) -> None:
    """Put a file into a folder, made if it is missing: as a hard link, or as a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        with target.open("rb") as copied:
            os.fsync(copied.fileno())


def link_graph(source: Path, target: Path) -> None:
    """Make a folder with the files of a graph: graph.json, arrays and documents; nothing derived."""
    manifest, _ = read_manifest(source)
    link_files(source, target, [*manifest.arrays, *manifest.documents, layout.MANIFEST])


FORMAT = "khop-snapshots 2"
_HEX = re.compile("[0-9a-f]{32,64}")


@dataclass(frozen=True)
class Snapshot:
    """Entry of one snapshot in snapshots.json."""

    fingerprint: str  # of its graph.json
    nodes: Mapping[str, int] = field(default_factory=dict)  # new nodes by type; negative: deleted
    edges: Mapping[str, int] = field(default_factory=dict)  # new edges by type

    @property
    def id(self) -> str:
        """Name of its folder."""
        return self.fingerprint[:16]


@dataclass(frozen=True)
class AppendedTables:
    """Appended tables, and their remaining nodes in the newest snapshot."""

    digest: str  # of the spec and its files
    snapshot: str  # the id of the snapshot that the append made
    nodes: Mapping[str, int] = field(default_factory=dict)  # new nodes of the append, by type
    left: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # first, and one past the last

    @classmethod
    def after(cls, counts: Callable[[str], int], digest: str, snapshot: Snapshot) -> AppendedTables:
        """Return the record of a new append; `counts` are nodes of the graph before it."""
        left = {name: (counts(name), counts(name) + new) for name, new in snapshot.nodes.items()}
        return cls(digest, snapshot.id, snapshot.nodes, left)

    def is_gone(self, graph: Path) -> bool:
        """Return True if all nodes of the tables were deleted; ValueError if some of them were."""
        deleted = self.deleted()
        if not deleted or deleted == dict(self.nodes):
            return bool(deleted)
        counts = ", ".join(f"{n:,} of {self.nodes[name]:,} {name}" for name, n in deleted.items())
        raise ValueError(
            f"append: the same spec and files were appended as snapshot {self.snapshot}, and some of their "
            f"nodes were deleted since ({counts}); the others are still in {graph}. To bring the deleted "
            "nodes back, append a table with only their rows"
        )

    def deleted(self) -> dict[str, int]:
        """Return the number of their nodes that were deleted since, by type, without zeros."""
        gone = {name: count - (self.left[name][1] - self.left[name][0]) for name, count in self.nodes.items()}
        return {name: count for name, count in gone.items() if count}

    def without(self, deleted: Mapping[str, npt.NDArray[np.int64]]) -> AppendedTables:
        """Return the record after nodes (by type, ascending) were deleted, which renumbers later nodes."""
        left = dict(self.left)
        for name in left.keys() & deleted.keys():
            first, end = left[name]
            before, inside = np.searchsorted(deleted[name], (first, end)).tolist()
            left[name] = (first - before, end - inside)
        return replace(self, left=left)


@dataclass(frozen=True)
class SnapshotRecord:
    """Content of snapshots.json."""

    snapshots: tuple[Snapshot, ...] = ()  # oldest first; () after `compact`
    appended: tuple[AppendedTables, ...] = ()  # kept by `compact`, so that tables are appended once

    def tables(self, digest: str) -> AppendedTables | None:
        """Return the record of tables with a digest; None if they were not appended."""
        return next((one for one in self.appended if one.digest == digest), None)

    def write(self, folder: Path) -> None:
        """Write snapshots.json of a folder atomically, with its checksum."""
        content = {"format": FORMAT, **asdict(self)}
        unfinished = folder / f".{layout.SNAPSHOT_RECORD}.new"
        with unfinished.open("wb") as file:
            file.write(json.dumps({**content, "sha256": _checksum(content)}, indent=1).encode() + b"\n")
            flush(file)
        unfinished.rename(folder / layout.SNAPSHOT_RECORD)
        flush_entries(folder)


def snapshot_record(graph: Path) -> SnapshotRecord:
    """Return snapshots.json of a graph folder, empty for a graph without appends; ValueError for damage."""
    record = graph / layout.SNAPSHOT_RECORD
    try:
        content = json.loads(record.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r} is not {FORMAT!r}")
        if content.pop("sha256") != _checksum(content):
            raise ValueError("its checksum differs from its content")
        return SnapshotRecord(
            tuple(_snapshot(one) for one in content["snapshots"]),
            tuple(_tables(one) for one in content["appended"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return SnapshotRecord()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{record}: not what khop writes ({unread(error)}); {REMEDY}") from error


def snapshots_of(graph: Path) -> tuple[Snapshot, ...]:
    """Return the snapshots of a graph folder, oldest first; () for a graph without appends."""
    return snapshot_record(graph).snapshots


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _snapshot(entry: Mapping[str, Any]) -> Snapshot:
    return Snapshot(_digest(entry["fingerprint"]), _counts(entry["nodes"]), _counts(entry["edges"]))


def _tables(entry: Mapping[str, Any]) -> AppendedTables:
    left = {str(name): (int(first), int(end)) for name, (first, end) in entry["left"].items()}
    nodes = _counts(entry["nodes"])
    if left.keys() != nodes.keys() or not all(
        0 <= a <= b <= a + nodes[name] for name, (a, b) in left.items()
    ):
        raise ValueError(f"{dict(left)!r} are not the rows that are left of {nodes!r}")
    return AppendedTables(_digest(entry["digest"]), str(entry["snapshot"]), nodes, left)


def _digest(text: object) -> str:
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise ValueError(f"{text!r} is not a digest in hexadecimal digits")
    return text


def _counts(entry: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(count) is int for count in entry.values()):
        raise ValueError(f"{dict(entry)!r} has a count that is not a whole number")
    return dict(entry)


def current_folder(graph: Path) -> Path:
    """Return the folder of the newest snapshot, or the graph folder itself if nothing was appended."""
    found = snapshots_of(graph)
    return snapshot_folder(graph, found[-1]) if found else graph


def snapshot_folder(graph: Path, snapshot: Snapshot) -> Path:
    """Return the folder of a snapshot: a graph folder like any other."""
    return graph / layout.SNAPSHOTS / snapshot.id


def folder_with(graph: Path, fingerprint: str) -> Path:
    """Return the folder of the snapshot with a fingerprint, or the path itself if there is none."""
    found = [one for one in snapshots_of(graph) if one.fingerprint == fingerprint]
    return snapshot_folder(graph, found[0]) if found else graph


def has_only_grown(folder: Path, fingerprint: str) -> bool:
    """Return True if no nodes were deleted between a snapshot with this fingerprint and that of a folder."""
    found = snapshots_of(layout.owner_of(folder) or folder)
    places = {one.fingerprint: place for place, one in enumerate(found)}
    before, now = places.get(fingerprint), places.get(read_manifest(folder)[1])
    if before is None or now is None:
        return False
    first, last = sorted((before, now))
    return all(count >= 0 for one in found[first + 1 : last + 1] for count in one.nodes.values())


@contextmanager
def only_writer(graph: Path) -> Iterator[None]:
    """Run the block as the only process that appends to a graph or compacts it; ValueError for another."""
    descriptor = os.open(graph, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(f"{graph}: another process is appending to it; wait until it ends") from None
    finally:
        os.close(descriptor)


def publish_snapshot(
    graph: Path,
    written: Path,
    snapshot: Snapshot,
    base_fingerprint: str,
    appended: tuple[AppendedTables, ...] = (),
) -> Path:
    """Make a finished folder the newest snapshot of a graph, atomically for readers.

    Readers of earlier snapshots keep them. The first append also saves the previous graph as a snapshot, so
    that runs on it can be resumed. `appended` is the record of all tables that were appended.
    """
    before = snapshots_of(graph)
    if not before:
        before = (Snapshot(base_fingerprint),)
        _link_base(graph, snapshot_folder(graph, before[0]))
    for folder, _, _ in os.walk(written):
        flush_entries(Path(folder))
    target = snapshot_folder(graph, snapshot)
    if target.is_dir():  # an earlier snapshot with equal rows, or one of a killed writer
        shutil.rmtree(written)
    else:
        written.rename(target)
    flush_entries(target.parent)
    SnapshotRecord((*before, snapshot), appended).write(graph)
    return target


def _link_base(graph: Path, target: Path) -> None:
    if target.is_dir():
        return
    new = target.with_name(".base.new")
    shutil.rmtree(new, ignore_errors=True)
    link_graph(graph, new)
    new.rename(target)


_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2(2)


def compact(graph: str | os.PathLike[str]) -> Path:
    """Make the newest snapshot the graph folder itself, and delete all others.

    Rows and ids that were deleted are then gone from the folder, and so is the disk space of earlier
    snapshots. The graph has the same fingerprint and the same batches as before. Takes milliseconds, because
    arrays are not copied. Appending the same tables again still does nothing. Runs on earlier snapshots
    cannot be resumed afterwards, and graphs that were opened before have to be opened again.

    Args:
        graph: The graph folder.
    Returns:
        The path of the folder.
    Raises:
        ValueError: The folder is not a graph, or another process writes to it.
    Example:
        >>> import pyarrow
        >>> users = {"rows": pyarrow.table({"user": ["ann", "bob"]}), "id": "user"}
        >>> graph = khop.import_tables({"nodes": {"user": users}}, tmp / "graph").path
        >>> snapshot = khop.append(graph, delete={"user": ["bob"]})
        >>> khop.open_ids(khop.compact(graph), "user").ids([0])
        ['ann']
    """
    path = path_of("graph", graph).resolve()
    hidden = path.with_name(f".{path.name}.compacting")
    with only_writer(path):
        shutil.rmtree(hidden, ignore_errors=True)  # remainder of a killed process
        newest = current_folder(path)
        if newest == path:
            return path
        link_graph(newest, hidden)
        if appended := snapshot_record(path).appended:
            SnapshotRecord(appended=appended).write(hidden)
        for folder, _, _ in os.walk(hidden):
            flush_entries(Path(folder))
        _exchange(hidden, path)
        flush_entries(path.parent)
        shutil.rmtree(hidden)
    return path


def _exchange(new: Path, path: Path) -> None:
    """Exchange two folders atomically, or in two steps if the file system does not support it."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(new), os.fsencode(path)
    if renameat2 is not None and renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0:
        return
    old = path.with_name(f".{path.name}.compacted")
    path.rename(old)
    new.rename(path)
    old.rename(new)
