"""`khop.compact`: keep the newest snapshot of a graph alone."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from khop.arguments import path_of
from khop.graph.atomic import flush_entries
from khop.graph.linked_files import link_graph
from khop.graph.snapshots import SnapshotRecord, current_folder, only_writer, snapshot_record

_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2(2)


def compact(graph: str | os.PathLike[str]) -> Path:
    """Make the newest snapshot the graph folder itself, erase all others from the disk, and return the path.

    Rows and ids that were deleted are gone from the folder then, and so is the disk space of earlier
    snapshots. The graph has the same fingerprint and the same batches as before. Takes milliseconds: no array
    is copied. Appending the same tables again still does nothing. Runs on earlier snapshots cannot be resumed
    afterwards, and graphs that were opened before have to be opened again.
    """
    path = path_of("graph", graph).resolve()
    hidden = path.with_name(f".{path.name}.compacting")
    with only_writer(path):
        shutil.rmtree(hidden, ignore_errors=True)  # of a process that was killed: what it had replaced
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
    """Exchange two folders in one step; in two where the file system has no such step."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(new), os.fsencode(path)
    if renameat2 is not None and renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0:
        return
    old = path.with_name(f".{path.name}.compacted")
    path.rename(old)
    new.rename(path)
    old.rename(new)
