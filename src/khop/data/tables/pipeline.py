"""The import of tables: a spec and its tables become a graph folder.

Stages are stored on disk, so that an interrupted import continues with its last stage. The import is
identified by the spec, the size and time of every file, and the snapshots of servers.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from khop.arguments import path_of, whole_number
from khop.data.tables.databases import database_of
from khop.data.tables.edge_reader import EdgeReader, fitted_columns
from khop.data.tables.encoders import RelationEncoder, restored, stored
from khop.data.tables.files import find_files
from khop.data.tables.import_state import (
    ImportState,
    check_file_names,
    edge_reader,
    node_reader,
    opened,
    parsed_once,
    read_ids,
    rows_to_read,
)
from khop.data.tables.later_spec import LABEL, GivenEncoders, has_splits, later_spec, record_of
from khop.data.tables.node_columns import write_nodes
from khop.data.tables.read_spec import checked_spec, read_spec
from khop.data.tables.source import ROW_BYTES, SourceFolder
from khop.data.tables.spec import Source, Spec
from khop.graph.atomic import ProgressCallback, flush_entries, naming, raise_if_full, refuse_existing
from khop.graph.build import table_chunks, write_edges, write_ids
from khop.graph.edge_runs import EdgeRuns, spill
from khop.graph.folder import DOCUMENT, LATER, TIME_SPLIT, record_document, write_documents
from khop.graph.folder_writer import FolderWriter
from khop.graph.manifest import (
    EdgeEntry,
    Manifest,
    NodeEntry,
    array_entry,
    edge_entry,
    node_entry,
    write_manifest,
)
from khop.graph.npy import flush
from khop.kernels.memory import free_memory_bytes
from khop.schema import EdgeType

FINGERPRINT_FORMAT = 1  # of the files between stages; another format must not be resumed


def fingerprint_of(spec: Spec, folder: SourceFolder, encoders: str = "") -> str:
    """Return a text that is equal for equal input. Tables in memory are never equal.

    `encoders` identifies the encoders of later data.
    """
    sources: list[tuple[str, Source]] = [(f"nodes.{name}", node) for name, node in spec.nodes.items()]
    sources += [(f"nodes.{name}.also", one) for name, node in spec.nodes.items() for one in node.also]
    sources += [(f'edges."{name}"', edge) for name, edge in spec.edges.items()]
    sources += [(f"edges_from[{number}]", table) for number, table in enumerate(spec.edges_from)]
    if any(source.rows is not None for _, source in sources):
        return uuid.uuid4().hex
    files = [state for key, source in sources for state in _states(source, folder, key)]
    splits = [spec.splits, *(node.split for node in spec.nodes.values())]
    lists = {path for split in splits if split is not None for path in split.files.values()}
    files += [_state(file.path) for file in find_files(sorted(lists), folder.path, "splits")]
    content = {"format": FINGERPRINT_FORMAT, "spec": spec.model_dump(mode="json"), "files": files}
    content |= {"encoders": encoders} if encoders else {}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _states(source: Source, folder: SourceFolder, key: str) -> Iterator[list[str | int]]:
    if source.files is not None:
        for file in find_files(source.files, folder.path, f"{key}.files"):
            yield _state(Path(file.path))
    elif source.database is not None:
        database = database_of(source.database, folder.path, folder.environment, f"{key}.database")
        if database.path is None:
            yield [database.name, folder.databases.snapshot(database, key).state]
            return
        yield _state(database.path)
        log = database.path.with_name(f"{database.path.name}-wal")  # rows of SQLite that are not in the file
        if log.exists():
            yield _state(log)


def _state(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


_FINGERPRINT, _LOCK = "fingerprint", "lock"


@dataclass(frozen=True)
class ImportFolder:
    """The folder of a running import, next to the output folder. Only one process at a time uses it."""

    path: Path
    out: Path

    @classmethod
    @contextmanager
    def open(cls, out: Path, fingerprint: str) -> Iterator[ImportFolder]:
        """Resume the import of the same input, or start a new one.

        After an error the folder is removed. It is kept if the process is killed or interrupted by Ctrl-C.
        """
        refuse_existing(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        work = cls.at(out)
        work.path.mkdir(exist_ok=True)
        lock = _locked(work)
        try:
            known = work.path / _FINGERPRINT
            is_known = known.is_file() and known.read_text() == fingerprint
            if not is_known or not work.graph.is_dir():  # without it: killed after it was renamed
                work._begin(fingerprint)
            yield work
        except Exception as error:
            shutil.rmtree(work.path, ignore_errors=True)
            raise_if_full(out, error)
            raise
        finally:
            os.close(lock)

    @classmethod
    def at(cls, out: Path) -> ImportFolder:
        """Return the folder of the import that writes `out`; it may not exist."""
        return cls(out.parent / f".{out.name}.importing", out)

    @property
    def graph(self) -> Path:
        """The graph folder under construction."""
        return self.path / "graph"

    @property
    def runs(self) -> Path:
        """The folder of files between stages."""
        return self.path / "runs"

    def stage(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the stored result of a stage, or run and store it. Results are JSON values.

        Files written by `make` must be flushed to disk when it returns.
        """
        path = self.path / "stages" / f"{name}.json"
        if path.is_file():
            done: dict[str, Any] = json.loads(path.read_text())
            return done
        content = json.dumps(make())
        unfinished = path.with_suffix(".new")
        with unfinished.open("wb") as file:
            file.write(content.encode())
            flush(file)
        unfinished.rename(path)
        flush_entries(path.parent)
        made: dict[str, Any] = json.loads(content)  # the same types as after a restart
        return made

    def publish(self) -> None:
        """Rename the finished graph to the output folder, and remove the rest."""
        for folder, _, _ in os.walk(self.graph):
            flush_entries(Path(folder))
        refuse_existing(self.out)
        self.graph.rename(self.out)
        flush_entries(self.out.parent)
        shutil.rmtree(self.path)

    def _begin(self, fingerprint: str) -> None:
        for there in self.path.iterdir():
            if there.is_dir():
                shutil.rmtree(there)
            elif there.name != _LOCK:
                there.unlink()
        for folder in (self.graph, self.runs, self.path / "stages"):
            folder.mkdir()
        (self.path / _FINGERPRINT).write_text(fingerprint)


def _locked(work: ImportFolder) -> int:
    lock = os.open(work.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ValueError(
            f"{work.out}: another process is importing to it; wait until it ends, or choose another name"
        ) from None
    return lock


FORMAT = "khop-import 1"
LEAST_MEMORY = 64_000_000  # for public functions: each thread needs memory for a batch of rows
_LACKED = "words or categories that are not in training"


@dataclass(frozen=True)
class Imported:
    """Counts of an import."""

    path: Path
    nodes: Mapping[str, int]
    edges: Mapping[str, int]
    notes: tuple[str, ...]  # dropped rows, unknown categories

    def __str__(self) -> str:
        return f"{self.path}: {self.counts()}"

    def counts(self) -> str:
        """Return a line with the counts, and a line for each note."""
        nodes = ", ".join(f"{count:,} {node_type}" for node_type, count in self.nodes.items())
        edges = ", ".join(f"{count:,} {edge_type}" for edge_type, count in self.edges.items())
        return "\n".join([f"{nodes}; {edges or 'no edges'}", *self.notes])


def run_import(
    spec: Spec,
    out: Path,
    folder: SourceFolder,
    *,
    threads: int,
    memory: int,
    notice: ProgressCallback | None = None,
    encoders: GivenEncoders | None = None,
) -> Imported:
    """Write a graph folder from the tables of a spec, atomically.

    The result depends only on the rows and their order, not on threads or the grouping of rows. After a kill,
    the same import continues after the last finished stage: an edge table read, a type written.

    With `encoders`, the rows are later data: see `later_spec`. Statistics are not computed, and edges may
    name nodes of the encoders' graph.
    """
    refuse_existing(out)
    check_file_names(spec)
    asked = spec
    spec = spec if encoders is None else later_spec(spec, encoders)
    work = opened(spec, folder, threads, memory, notice or (lambda *_: None), encoders)
    if encoders is not None and has_splits(asked):
        work.notes.append("splits: rows of later data are not in splits")
    rows = rows_to_read(work)
    work.meter.expect(rows, rows * ROW_BYTES)
    identity = "" if encoders is None else encoders.identity
    with ImportFolder.open(out, fingerprint_of(asked, folder, identity)) as stages:
        work.bound_ids(stages.runs)
        with parsed_once(work, stages.runs):
            read_ids(work)
            edges = [_spill_edges(work, edge_type, stages) for edge_type in work.rules()]
        total = sum(_array_bytes(work, run) for one in edges for run in one.runs)
        writer = FolderWriter(stages.graph, work.meter.end(total))
        nodes = [_write_nodes(work, node_type, writer, stages) for node_type in spec.nodes]
        edge_entries = [entry for one in edges for entry in one.write(writer, stages)]
        documents = write_documents(
            stages.graph, {DOCUMENT: _document(work, dict(zip(spec.nodes, nodes, strict=True)), edges)}
        )
        node_entries = tuple(entry for entry, _ in nodes)
        write_manifest(
            stages.graph, Manifest(node_entries, tuple(edge_entries), writer.arrays, documents=documents)
        )
        stages.publish()
    counts = {entry.type: entry.count for entry in node_entries}
    sizes = {" ".join(entry.type): entry.count for entry in edge_entries}
    return Imported(out, counts, sizes, tuple(work.notes))


def _array_bytes(work: ImportState, one: EdgeRuns) -> int:
    """Estimate the bytes of an edge type in the folder, for progress."""
    return 8 * len(work.ids[one.plan.edge_type[2]].table) + one.count * (one.spill.row_bytes - 4)


def _spill_edges(work: ImportState, edge_type: EdgeType, stages: ImportFolder) -> _SpilledEdges:
    """Write the edges of a type and their reverses to files, which are sorted later."""
    number, name = len(work.timed), " ".join(edge_type)
    touched = {end: np.zeros_like(work.touched[end]) for end in (edge_type[0], edge_type[2])}
    files = {end: stages.runs / f"{number}-{end}.npy" for end in touched}
    edges = edge_reader(work, edge_type, touched)
    work.timed[edge_type] = edges.is_timed
    spilled: list[EdgeRuns] = []

    def read() -> dict[str, Any]:
        work.meter.begin(f"edges {name}")
        edges.encoders.update(fitted_columns(edges))
        spilled.extend(_runs(work, edges, stages.runs / str(number)))
        spill(spilled, edges.tasks())
        if edges.rules.orphans == "refuse":
            edges.counted.refuse_orphans()
        for end, nodes in touched.items():
            with naming(files[end]), files[end].open("wb") as file:
                np.save(file, nodes)
                flush(file)
        return {
            "encoders": {column: stored(encoder) for column, encoder in edges.encoders.items()},
            "runs": [one.save() for one in spilled],
            "notes": [*edges.counted.left_out(name), *_unknown(name, edges)],
        }

    done = stages.stage(f"edges-{number}", read)
    if not spilled:
        edges.encoders.update({column: restored(state) for column, state in done["encoders"].items()})
        spilled.extend(_runs(work, edges, stages.runs / str(number)))
        for one, state in zip(spilled, done["runs"], strict=True):
            one.load(state)
    for end in touched:
        work.touched[end] |= np.load(files[end])
    work.notes.extend(done["notes"])
    return _SpilledEdges(edges, tuple(spilled), number)


def _runs(work: ImportState, edges: EdgeReader, path: Path) -> list[EdgeRuns]:
    """Open the files of an edge type and of its reverse."""
    edge_type, reverse = edges.edge_type, edges.rules.reverse
    types = [edge_type] if reverse is None else [edge_type, (edge_type[2], reverse, edge_type[0])]
    share = work.memory // (2 * len(types))
    return [
        EdgeRuns(path.with_name(f"{path.name}-{at}"), edges.plan(one), share, work.threads)
        for at, one in enumerate(types)
    ]


def _unknown(name: str, edges: EdgeReader) -> list[str]:
    counts = {column: edges.counted.num_unknown(column) for column in edges.encoders}
    found = [f"{name}.{column}: {n:,} rows with {_LACKED}" for column, n in counts.items() if n]
    relations = {c: one.names for c, one in edges.encoders.items() if isinstance(one, RelationEncoder)}
    return found + [
        f"{name}.{c}: {len(n):,} relations; {DOCUMENT} has their names" for c, n in relations.items()
    ]


@dataclass(frozen=True, eq=False)
class _SpilledEdges:
    edges: EdgeReader
    runs: tuple[EdgeRuns, ...]  # of the type and its reverse
    number: int

    def write(self, writer: FolderWriter, stages: ImportFolder) -> list[EdgeEntry]:
        """Write each type in a stage, and remove its files."""
        types = [one.plan.edge_type for one in self.runs]
        entries = []
        for at, (one, back) in enumerate(zip(self.runs, reversed(types), strict=True)):
            reverse = back if len(types) == 2 else None
            write = partial(lambda *of: asdict(write_edges(*of)), one, writer, reverse)
            entries.append(edge_entry(_written(writer, stages, f"arrays-{self.number}-{at}", write)))
            one.close()
        return entries


def _written(
    writer: FolderWriter, stages: ImportFolder, name: str, write: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Write arrays in a stage, which stores their entries of graph.json; return the values of `write`."""

    def make() -> dict[str, Any]:
        before, values = set(writer.arrays), write()
        arrays = {file: asdict(one) for file, one in writer.arrays.items() if file not in before}
        return {"entry": values, "arrays": arrays}

    done = stages.stage(name, make)
    writer.arrays.update({file: array_entry(one) for file, one in done["arrays"].items()})
    entry: dict[str, Any] = done["entry"]
    return entry


def _write_nodes(
    work: ImportState, node_type: str, writer: FolderWriter, stages: ImportFolder
) -> tuple[NodeEntry, Mapping[str, Any]]:
    """Write the ids and columns of a node type in a stage; also return its part of the document."""
    of_type = work.ids[node_type]
    timed = [edge_type for edge_type, is_timed in work.timed.items() if is_timed]

    def write() -> dict[str, Any]:
        count, kept = len(of_type.table), _write_ids(work, node_type, writer)
        if node_type not in work.sources:
            entry = NodeEntry(node_type, count, ids=kept)
            return {"entry": asdict(entry), "document": {"id": {"kind": of_type.kind}}, "notes": []}
        work.meter.begin(f"columns of {node_type}")
        is_touched = work.cut_offs is not None and any(node_type in (t[0], t[2]) for t in timed)
        reader = node_reader(work, node_type, work.touched[node_type] if is_touched else None)
        entry, document, unknown = write_nodes(reader, count, writer)
        notes = work.sources[node_type].left_out
        for name, rows in unknown.items():
            if rows:
                of_label = "labels of classes that are not in training"
                what = of_label if name == LABEL else f"rows with {_LACKED}"
                notes.append(f"{node_type}.{name}: {rows:,} {what}")
        return {"entry": asdict(replace(entry, ids=kept)), "document": document, "notes": notes}

    done = _written(writer, stages, f"nodes-{list(work.spec.nodes).index(node_type)}", write)
    work.notes.extend(done["notes"])
    return node_entry(done["entry"]), done["document"]


def _write_ids(work: ImportState, node_type: str, writer: FolderWriter) -> str:
    """Write the ids of a node type unless the spec has id = "none"; return their kind for graph.json."""
    of_type = work.ids[node_type]
    if work.spec.nodes[node_type].ids == "none":
        return ""
    work.meter.begin(f"ids of {node_type}")
    chunks = partial(table_chunks, of_type.table)
    write_ids(
        writer, node_type, of_type.kind, chunks, writer.folder.parent / "runs", work.memory, work.threads
    )
    return of_type.kind


def _document(
    work: ImportState, nodes: Mapping[str, tuple[NodeEntry, Mapping[str, Any]]], edges: list[_SpilledEdges]
) -> bytes:
    """Return the record for later data and runs, as JSON.

    It has the time unit, times of splits, columns, encoders and labels, but no paths, filters or secrets.
    """
    content: dict[str, Any] = {"format": FORMAT, "time_unit": work.unit}
    if work.given is not None:
        content[LATER] = {"encoders": work.given.sha256, "rows": work.rows}
    if work.cut_offs is not None:
        content[TIME_SPLIT] = {"val": work.cut_offs.val, "test": work.cut_offs.test}
    content["nodes"] = {node_type: dict(document) for node_type, (_, document) in nodes.items()}
    content["edges"] = {
        " ".join(one.edges.edge_type): {
            "source": one.edges.rules.source,
            "destination": one.edges.rules.destination,
            **record_of(one.edges.source.spec, one.edges.rules.columns, one.edges.encoders),
        }
        for one in edges
    }
    return record_document(content)


def import_tables(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    out: str | os.PathLike[str],
    *,
    memory: int | None = None,
    threads: int = 1,
    folder: str | os.PathLike[str] = ".",
    environment: Mapping[str, str] | None = None,
    notice: ProgressCallback | None = None,
    encoders: str | os.PathLike[str] | None = None,
) -> Imported:
    """Import tables as a graph folder.

    The folder is written atomically. It depends only on the rows and their order.

    Args:
        spec: TOML file, or the same values as a mapping. In a mapping, `rows` may replace `files`: a pandas,
            polars or Arrow table. Paths in a file are relative to the file.
        out: Graph folder to write.
        memory: Memory budget in bytes, at least 64 MB; default: half of the free memory. Dictionaries of ids
            that are larger than half of it are kept in files.
        threads: Threads that read files (default 1).
        folder: Folder of relative paths in a mapping (default: the working directory).
        environment: Variables of `database = "env:NAME"` in the spec: paths, or addresses of Postgres servers
            (default: none).
        notice: Function called with the progress (default: none).
        encoders: Folder of an imported graph, or of a run on one, whose statistics, vocabularies, categories
            and classes encode the tables. Columns, times and reverses that the spec omits are those of
            the graph. The tables have new nodes; edges may also name nodes of the graph. Default: encoders
            are computed from the tables.
    Returns:
        The folder, the number of nodes and edges by type, and notes about dropped rows.
    Raises:
        ValueError: The spec or a table is wrong. The text names file, row and column of the first problem.
    Example:
        >>> import pyarrow as pa
        >>> follows = {"rows": pa.table({"a": [1, 2], "b": [2, 3]}), "source": "a", "destination": "b"}
        >>> users = {"rows": pa.table({"user": [1, 2, 3]}), "id": "user"}
        >>> spec = {"nodes": {"user": users}, "edges": {"user follows user": follows}}
        >>> khop.import_tables(spec, tmp / "users").nodes
        {'user': 3}
    """
    threads, budget = whole_number("threads", threads, 1), budget_of(memory)
    given = None if encoders is None else GivenEncoders.open(path_of("encoders", encoders))
    values, start = spec_and_folder(spec, path_of("folder", folder))
    source = SourceFolder(start, environment or {})
    with closing(source.databases):
        return run_import(
            values, path_of("out", out), source, threads=threads, memory=budget, notice=notice, encoders=given
        )


def budget_of(memory: int | None) -> int:
    """Return a memory budget in bytes: as given and checked, or half of the free memory."""
    least = LEAST_MEMORY
    return max(least, free_memory_bytes() // 2) if memory is None else whole_number("memory", memory, least)


def spec_and_folder(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec, start: Path
) -> tuple[Spec, Path]:
    """Return a checked spec, and the folder of its relative paths: `start`, or that of its file."""
    if isinstance(spec, Spec):
        return spec, start
    if isinstance(spec, Mapping):
        return checked_spec(spec, "spec"), start
    path = path_of("spec", spec)
    return read_spec(path), path.parent
