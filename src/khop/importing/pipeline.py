"""Import: a spec and its tables become a graph folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from khop.graph.atomic import naming, refuse_existing
from khop.graph.disk_space import check_disk
from khop.graph.documents import write_documents
from khop.graph.edge_runs import EdgeRuns, spill
from khop.graph.folder_writer import FolderWriter
from khop.graph.import_record import DOCUMENT, LATER
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
from khop.graph.progress import ProgressCallback
from khop.graph.write_edges import write_edges
from khop.graph.write_ids import table_chunks, write_ids
from khop.importing.disk_estimate import import_bytes, kept_bytes, peak_bytes, rows_of, rows_to_read
from khop.importing.edge_reader import EdgeImport, fitted_columns
from khop.importing.encode_category import RelationEncoder
from khop.importing.encoders import restored, stored
from khop.importing.file_names import check_file_names
from khop.importing.fingerprint import fingerprint_of
from khop.importing.given_encoders import GivenEncoders
from khop.importing.import_state import ImportState, edge_reader, node_reader, opened
from khop.importing.later_spec import has_splits, later_spec, raw_record, time_record
from khop.importing.node_columns import LABEL, write_nodes
from khop.importing.number_nodes import read_ids
from khop.importing.parsed_once import parsed_once
from khop.importing.source import SourceFolder
from khop.importing.spec import Spec
from khop.importing.work_folder import WorkFolder
from khop.schema import EdgeType

FORMAT = "khop-import 1"
DEFAULT_MEMORY = 2 << 30
LEAST_MEMORY = 64_000_000  # of the public functions: a batch of rows on each thread takes some of it
_LACKED = "words or categories that training lacks"
EntryT = TypeVar("EntryT")


@dataclass(frozen=True)
class Imported:
    """Counts of an import, for people."""

    path: Path
    nodes: Mapping[str, int]
    edges: Mapping[str, int]
    notes: tuple[str, ...]  # rows left out, unknown categories

    def __str__(self) -> str:
        return f"{self.path}: {self.counts()}"

    def counts(self) -> str:
        """Return the counts in a line, and a line for each note."""
        nodes = ", ".join(f"{count:,} {node_type}" for node_type, count in self.nodes.items())
        edges = ", ".join(f"{count:,} {edge_type}" for edge_type, count in self.edges.items())
        return "\n".join([f"{nodes}; {edges or 'no edges'}", *self.notes])


def run_import(
    spec: Spec,
    out: Path,
    folder: SourceFolder,
    *,
    threads: int = 1,
    memory: int = DEFAULT_MEMORY,
    notice: ProgressCallback | None = None,
    encoders: GivenEncoders | None = None,
) -> Imported:
    """Write a graph folder from the tables of a spec, complete or not at all.

    The result depends on the rows and their order alone, not on threads or the grouping of rows. After a
    kill, the same import goes on after the last finished stage: an edge table read, a type written.

    With `encoders`, the rows are later data: see `later_spec`. No statistics are computed, and edges may name
    nodes of the graph that the encoders come from.
    """
    refuse_existing(out)
    check_file_names(spec)
    asked = spec
    spec = spec if encoders is None else later_spec(spec, encoders)
    work = opened(spec, folder, threads, memory, notice or (lambda *_: None), encoders)
    if encoders is not None and has_splits(asked):
        work.notes.append("splits: rows of later data are in none")
    needed = import_bytes(work)
    if not WorkFolder.at(out).path.exists():  # what an import that was killed left counts already
        check_disk(out, needed + kept_bytes(work), "the import")
    work.meter.expect(rows_to_read(work), needed)
    identity = "" if encoders is None else encoders.identity
    with WorkFolder.open(out, fingerprint_of(asked, folder, identity)) as stages:
        work.bound_ids(stages.runs)
        with parsed_once(work, stages.runs):
            read_ids(work)
            edges = [_spill_edges(work, edge_type, stages) for edge_type in work.rules()]
        check_disk(stages.path, peak_bytes(_unwritten(work, edges, stages)), "the graph")
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


def _unwritten(
    work: ImportState, edges: list[_SpilledEdges], stages: WorkFolder
) -> Iterator[tuple[int, int]]:
    """Yield the bytes of arrays and of the file of each edge type that no earlier process has written."""
    for one, at in ((of_table, at) for of_table in edges for at in range(len(of_table.runs))):
        run = one.runs[at]
        if not stages.has(f"arrays-{one.number}-{at}"):
            yield _array_bytes(work, run), run.count * run.spill.row_bytes


def _array_bytes(work: ImportState, one: EdgeRuns) -> int:
    """Return about the bytes of an edge type in the folder: what progress is measured by."""
    return 8 * len(work.ids[one.plan.edge_type[2]].table) + one.count * (one.spill.row_bytes - 4)


def _spill_edges(work: ImportState, edge_type: EdgeType, stages: WorkFolder) -> _SpilledEdges:
    """Read the edges of a type once more, with their reverses, into files sorted later."""
    reader, rules, name = edge_reader(work, edge_type), work.rules()[edge_type], " ".join(edge_type)
    number = len(work.timed)
    touched = {end: np.zeros_like(work.touched[end]) for end in (edge_type[0], edge_type[2])}
    edges = EdgeImport(reader, {}, work.node_times, touched)
    work.timed[edge_type] = edges.is_timed
    spilled: list[EdgeRuns] = []

    def read() -> dict[str, Any]:
        work.meter.begin(f"edges {name}")
        edges.encoders.update(fitted_columns(edges))
        spilled.extend(_runs(work, edges, stages.runs / str(number)))
        row_bytes = sum(one.spill.row_bytes for one in spilled)
        check_disk(stages.path, rows_of(reader.source) * row_bytes, f"edge type {name}")
        spill(spilled, edges.tasks())
        if rules.orphans == "refuse":
            edges.counted.refuse_orphans()
        for end, nodes in touched.items():
            _keep(_touched_file(stages, number, end), nodes)
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
        work.touched[end] |= np.load(_touched_file(stages, number, end))
    work.notes.extend(done["notes"])
    return _SpilledEdges(edges, tuple(spilled), number)


def _touched_file(stages: WorkFolder, number: int, node_type: str) -> Path:
    return stages.runs / f"{number}-{node_type}.npy"


def _keep(path: Path, array: npt.NDArray[Any]) -> None:
    with naming(path), path.open("wb") as file:
        np.save(file, array)
        flush(file)


def _runs(work: ImportState, edges: EdgeImport, path: Path) -> list[EdgeRuns]:
    """Open the files of an edge type and of its reverse."""
    edge_type, reverse = edges.reader.edge_type, edges.reader.rules.reverse
    types = [edge_type] if reverse is None else [edge_type, (edge_type[2], reverse, edge_type[0])]
    share = work.memory // (2 * len(types))
    return [
        EdgeRuns(path.with_name(f"{path.name}-{at}"), edges.plan(one), share, work.threads)
        for at, one in enumerate(types)
    ]


def _unknown(name: str, edges: EdgeImport) -> list[str]:
    counts = {column: edges.counted.num_unknown(column) for column in edges.encoders}
    found = [f"{name}.{column}: {n:,} rows with {_LACKED}" for column, n in counts.items() if n]
    relations = {c: one.names for c, one in edges.encoders.items() if isinstance(one, RelationEncoder)}
    return found + [
        f"{name}.{c}: {len(n):,} relations; {DOCUMENT} has their names" for c, n in relations.items()
    ]


@dataclass(frozen=True, eq=False)
class _SpilledEdges:
    edges: EdgeImport
    runs: tuple[EdgeRuns, ...]  # of the type, and of its reverse
    number: int

    def write(self, writer: FolderWriter, stages: WorkFolder) -> list[EdgeEntry]:
        """Write the types in a stage each, and remove their files."""
        types = [one.plan.edge_type for one in self.runs]
        entries = []
        for at, (one, back) in enumerate(zip(self.runs, reversed(types), strict=True)):
            write = partial(write_edges, one, writer, back if len(types) == 2 else None)
            entry = _written(writer, stages, f"arrays-{self.number}-{at}", write, edge_entry)
            one.close()
            entries.append(entry)
        return entries


def _written(
    writer: FolderWriter,
    stages: WorkFolder,
    name: str,
    write: Callable[[], EntryT],
    read: Callable[[Mapping[str, Any]], EntryT],
) -> EntryT:
    """Write arrays in a stage; their entries of graph.json outlive the process."""

    def make() -> dict[str, Any]:
        before = set(writer.arrays)
        entry = asdict(write())  # type: ignore[call-overload]
        arrays = {file: asdict(one) for file, one in writer.arrays.items() if file not in before}
        return {"entry": entry, "arrays": arrays}

    done = stages.stage(name, make)
    writer.arrays.update({file: array_entry(one) for file, one in done["arrays"].items()})
    return read(done["entry"])


def _write_nodes(
    work: ImportState, node_type: str, writer: FolderWriter, stages: WorkFolder
) -> tuple[NodeEntry, Mapping[str, Any]]:
    """Write the ids and columns of a node type in a stage; also return what the document says of it."""
    number = list(work.spec.nodes).index(node_type)
    write = partial(_nodes, work, node_type, writer)
    done = _written(writer, stages, f"nodes-{number}", write, _node_stage)
    work.notes.extend(done.notes)
    return node_entry(done.entry), done.document


@dataclass(frozen=True)
class _NodeStage:
    """A written node type, as JSON."""

    entry: dict[str, Any]
    document: dict[str, Any]
    notes: list[str]


def _node_stage(state: Mapping[str, Any]) -> _NodeStage:
    return _NodeStage(**state)


def _nodes(work: ImportState, node_type: str, writer: FolderWriter) -> _NodeStage:
    count, of_type = len(work.ids[node_type].table), work.ids[node_type]
    kept = _write_ids(work, node_type, writer)
    if node_type not in work.sources:
        entry = NodeEntry(node_type, count, ids=kept)
        return _NodeStage(asdict(entry), {"id": {"kind": of_type.kind}}, [])
    work.meter.begin(f"columns of {node_type}")
    is_touched = work.cut_offs is not None and any(
        is_timed and node_type in (edge_type[0], edge_type[2]) for edge_type, is_timed in work.timed.items()
    )
    reader = node_reader(work, node_type, work.touched[node_type] if is_touched else None)
    found = write_nodes(reader, count, writer)
    notes = work.sources[node_type].left_out
    for name, unknown in found.unknown.items():
        if unknown:
            what = "labels of classes that training lacks" if name == LABEL else f"rows with {_LACKED}"
            notes.append(f"{node_type}.{name}: {unknown:,} {what}")
    return _NodeStage(asdict(replace(found.entry, ids=kept)), dict(found.document), notes)


def _write_ids(work: ImportState, node_type: str, writer: FolderWriter) -> str:
    """Write the ids of a node type, unless the spec keeps none; return their kind as graph.json has it."""
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
    """Return what later data and runs need: unit, cut-offs, encoders, classes. No path, filter or secret."""
    content: dict[str, Any] = {"format": FORMAT, "time_unit": work.unit}
    if work.given is not None:
        content[LATER] = {"encoders": work.given.sha256, "rows": work.rows}
    if work.cut_offs is not None:
        content["time_split"] = {"val": work.cut_offs.val, "test": work.cut_offs.test}
    content["nodes"] = {node_type: dict(document) for node_type, (_, document) in nodes.items()}
    content["edges"] = {
        " ".join(one.edges.reader.edge_type): {
            "source": one.edges.reader.rules.source,
            "destination": one.edges.reader.rules.destination,
            **_edge_columns(one.edges),
        }
        for one in edges
    }
    return json.dumps(content, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def _edge_columns(edges: EdgeImport) -> dict[str, Any]:
    """Return the record of the columns and times of an edge type."""
    columns = edges.reader.rules.columns
    return {
        "columns": [
            {"name": name, "column": columns[name].column or name, **stored(encoder)}
            for name, encoder in edges.encoders.items()
        ],
        **time_record(edges.reader.source.spec),
        **raw_record(columns),
    }
