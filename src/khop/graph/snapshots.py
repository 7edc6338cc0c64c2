"""Snapshots of a graph folder: the graph as it was imported, and after each append."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.atomic import flush_entries
from khop.graph.linked_files import link_graph
from khop.graph.npy import flush

FORMAT = "khop-snapshots 1"


@dataclass(frozen=True)
class Snapshot:
    """One snapshot, as snapshots.json has it."""

    fingerprint: str  # of its graph.json
    nodes: Mapping[str, int] = field(default_factory=dict)  # new nodes by type; negative: deleted
    edges: Mapping[str, int] = field(default_factory=dict)  # new edges by type
    input: str = ""  # digest of the spec and its files; "": nothing to compare

    @property
    def id(self) -> str:
        """Name of its folder."""
        return self.fingerprint[:16]


def snapshots_of(graph: Path) -> tuple[Snapshot, ...]:
    """Return the snapshots of a graph folder, oldest first; () for a graph without appends."""
    record = graph / layout.SNAPSHOT_RECORD
    try:
        content: Mapping[str, Any] = json.loads(record.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        return tuple(Snapshot(**one) for one in content["snapshots"])
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record}: not what khop writes ({error}); {REMEDY}") from error


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


def owner_of(path: Path) -> Path | None:
    """Return the graph folder that a path is a snapshot of; None for other paths."""
    graph = path.absolute().parent.parent
    is_named = path.absolute().parent.name == layout.SNAPSHOTS
    return graph if is_named and (graph / layout.SNAPSHOT_RECORD).is_file() else None


@contextmanager
def only_writer(graph: Path) -> Iterator[None]:
    """Run the block as the only process that appends to a graph or compacts it; ValueError for another."""
    descriptor = os.open(graph, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(f"{graph}: another process appends to it; wait for its end") from None
    finally:
        os.close(descriptor)


def publish_snapshot(graph: Path, written: Path, snapshot: Snapshot, base_fingerprint: str) -> Path:
    """Make a finished folder the newest snapshot of a graph, in one step for all readers.

    Readers of earlier snapshots keep them. The first append also gives the graph before it a folder, so that
    runs on it can be resumed.
    """
    before = snapshots_of(graph)
    if not before:
        before = (Snapshot(base_fingerprint),)
        _link_base(graph, snapshot_folder(graph, before[0]))
    for folder, _, _ in os.walk(written):
        flush_entries(Path(folder))
    target = snapshot_folder(graph, snapshot)
    if target.is_dir():  # a writer died before it recorded the same snapshot
        shutil.rmtree(written)
    else:
        written.rename(target)
    flush_entries(target.parent)
    content = {"format": FORMAT, "snapshots": [asdict(one) for one in (*before, snapshot)]}
    unfinished = graph / f".{layout.SNAPSHOT_RECORD}.new"
    with unfinished.open("wb") as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")
        flush(file)
    unfinished.rename(graph / layout.SNAPSHOT_RECORD)
    flush_entries(graph)
    return target


def _link_base(graph: Path, target: Path) -> None:
    if target.is_dir():
        return
    new = target.with_name(".base.new")
    shutil.rmtree(new, ignore_errors=True)
    link_graph(graph, new)
    new.rename(target)
