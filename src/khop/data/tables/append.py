"""`khop.append`: rows of later tables added to an imported graph."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.arguments import mapping_of, path_of, whole_number
from khop.data.tables.later_spec import GivenEncoders
from khop.data.tables.pipeline import ImportFolder, budget_of, fingerprint_of, run_import, spec_and_folder
from khop.data.tables.source import SourceFolder
from khop.data.tables.spec import Spec
from khop.graph.append_rows import AddedRows, Appending, added_rows, check_appendable, check_split, delete_ids
from khop.graph.atomic import Meter, ProgressCallback, check_disk
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.folder_writer import FolderWriter
from khop.graph.layout import SNAPSHOTS, is_partitioned, owner_of
from khop.graph.manifest import write_manifest
from khop.graph.snapshots import AppendedTables, Snapshot, only_writer, publish_snapshot, snapshot_record
from khop.schema import NodeType

_NEXT = "next"  # the snapshot under construction
Ids = Mapping[NodeType, "list[str] | list[int]"]


@dataclass(frozen=True)
class Appended:
    """Counts of an append."""

    path: Path  # of the snapshot
    snapshot: str  # its id
    nodes: Mapping[str, int]  # new ones by type; negative: deleted
    edges: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = [f"{count:+,} {type_}" for type_, count in (*self.nodes.items(), *self.edges.items())]
        return "\n".join([f"snapshot {self.snapshot}: {', '.join(counts) or 'no new rows'}", *self.notes])


def append(
    graph: str | os.PathLike[str],
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec | None = None,
    *,
    delete: Ids | None = None,
    split: str = "",
    memory: int | None = None,
    threads: int = 1,
    folder: str | os.PathLike[str] = ".",
    environment: Mapping[str, str] | None = None,
    notice: ProgressCallback | None = None,
) -> Appended:
    """Append rows of tables to an imported graph, or delete nodes, as a new snapshot of its folder.

    The new snapshot is bit-identical to a graph imported from all rows at once with the encoders and splits
    of the graph. It is written atomically, and an interrupted append continues where it stopped. Processes
    that have opened the graph keep their snapshot.

    The same spec and files are appended only once, also after `khop.compact`. If all their nodes have been
    deleted since, appending them again restores the nodes and their edges.

    Args:
        graph: Folder of a graph that `khop.import_tables` has written.
        spec: Tables of new nodes and edges, as in `khop.import_tables` with `encoders=graph`. Edges may also
            name nodes of the graph. None (default): nothing is appended.
        delete: Original ids of nodes to delete, by node type, instead of `spec`. Their edges are deleted too,
            and other nodes are renumbered. Earlier snapshots keep the nodes until `khop.compact`. None
            (default): nothing is deleted.
        split: Split of new nodes with known labels (default: none).
        memory: Memory budget in bytes, at least 64 MB; default: half of the free memory.
        threads: Threads that read files (default 1).
        folder: Folder of relative paths in a mapping (default: the working directory).
        environment: Variables of `database = "env:NAME"` in the spec (default: none).
        notice: Function called with the progress (default: none).
    Returns:
        The snapshot, and the number of added or deleted nodes and edges by type.
    Raises:
        ValueError: A table does not fit. The text names file, row and column of the first problem.
    Example:
        >>> import pyarrow as pa
        >>> def users(*ids):
        ...     return {"nodes": {"user": {"rows": pa.table({"user": ids}), "id": "user"}}}
        >>> graph = khop.import_tables(users(1, 2, 3), tmp / "users").path
        >>> khop.append(graph, users(4)).nodes
        {'user': 1}
        >>> khop.append(graph, delete={"user": [3]}).nodes
        {'user': -1}
    """
    threads, budget = whole_number("threads", threads, 1), budget_of(memory)
    path = _checked_path(path_of("graph", graph))
    if delete is not None:
        mapping_of("delete", delete, "node types to lists of ids")
    with only_writer(path):
        base = open_folder(path)
        check_appendable(base)
        check_split(base, split)
        if spec is None or delete is not None:
            if spec is not None or not delete or split:
                raise ValueError("append: give a spec of new rows, or the ids of nodes to delete")
            target, snapshot, notes = delete_ids(path, base, delete, budget, threads, notice)
            return Appended(target, snapshot.id, snapshot.nodes, snapshot.edges, notes)
        values, start = spec_and_folder(spec, path_of("folder", folder))
        source = SourceFolder(start, environment or {})
        with closing(source.databases):
            return _appended(path, base, values, source, split, budget, threads, notice)


def _checked_path(path: Path) -> Path:
    """Return the path without symbolic links; ValueError for folders that cannot be appended to."""
    if is_partitioned(path):
        raise ValueError(
            f"{path}: is a partitioned graph; append to the graph before partitioning, and partition the "
            "result: khop append GRAPH SPEC.toml, khop partition GRAPH OUT"
        )
    if (graph := owner_of(path)) is not None:
        raise ValueError(f"{path}: is a snapshot of {graph}; append to {graph}")
    return path.resolve() if path.is_dir() else open_folder(path).path


def _appended(
    graph: Path, base: GraphFolder, spec: Spec, source: SourceFolder, split: str, memory: int, threads: int,
    notice: ProgressCallback | None,
) -> Appended:  # fmt: skip
    """Import the tables, and merge their rows with the rows of the graph; each is a stage."""
    for edge_type, rules in spec.edge_types():
        if rules.duplicates not in ("keep", "refuse"):
            raise ValueError(
                f'edges."{" ".join(edge_type)}".duplicates is {rules.duplicates!r}: append keeps the edges '
                "of the graph unchanged; remove it, or import all tables again"
            )
    encoders, record = GivenEncoders.open(graph), snapshot_record(graph)
    given = fingerprint_of(spec, source, f"append {split}")
    before = record.tables(given)
    home = graph / SNAPSHOTS
    if before is not None and not before.is_gone(graph):
        shutil.rmtree(ImportFolder.at(home / _NEXT).path, ignore_errors=True)  # left by a killed process
        note = "nothing to do: the same spec and files have already been appended"
        return Appended(base.path, before.snapshot, {}, {}, (note,))
    home.mkdir(exist_ok=True)
    with ImportFolder.open(home / _NEXT, f"{given} {base.fingerprint}") as stages:
        later = stages.path / "later"

        def import_later() -> dict[str, Any]:
            shutil.rmtree(later, ignore_errors=True)  # left by a killed process
            done = run_import(
                spec, later, source, threads=threads, memory=memory, notice=notice, encoders=encoders
            )
            return {"notes": list(done.notes)}

        notes = stages.stage("tables", import_later)["notes"]
        new = added_rows(base, open_folder(later))
        if before is not None:
            new, left_out = new.without_edges_of(base)
            notes += left_out
        fingerprint = _merged(base, new, stages.graph, split, memory, threads, notice)
        nodes = {node_type: one.count for node_type, one in new.nodes.items() if one.count}
        edges = {" ".join(edge_type): len(one) for edge_type, one in new.edges.items() if len(one)}
        snapshot = Snapshot(fingerprint, nodes, edges)
        tables = AppendedTables.after(base.num_nodes, given, snapshot)
        appended = (*(one for one in record.appended if one.digest != given), tables)
        target = publish_snapshot(graph, stages.graph, snapshot, base.fingerprint, appended)
    shutil.rmtree(stages.path, ignore_errors=True)
    return Appended(target, snapshot.id, nodes, edges, tuple(notes))


def _merged(
    base: GraphFolder, new: AddedRows, out: Path, split: str, memory: int, threads: int,
    notice: ProgressCallback | None,
) -> str:  # fmt: skip
    """Write the merged graph and return its fingerprint."""
    shutil.rmtree(out)
    out.mkdir()
    size = sum(entry.bytes for entry in base.arrays.values())
    check_disk(out, size, "the snapshot")
    writer = FolderWriter(out, Meter(size, notice))
    write_manifest(out, Appending(base, new, writer, split, memory, threads).write())
    return open_folder(out).fingerprint
