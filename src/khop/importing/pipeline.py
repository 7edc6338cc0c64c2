"""Import: a spec and its tables become a graph folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.atomic import new_folder, refuse_existing
from khop.graph.documents import write_documents
from khop.graph.edge_runs import EdgeRuns, spill
from khop.graph.folder_writer import FolderWriter
from khop.graph.layout import check_edge_types, check_names
from khop.graph.manifest import EdgeEntry, Manifest, NodeEntry, write_manifest
from khop.graph.parallel_tasks import in_order
from khop.graph.progress import Meter, ProgressCallback
from khop.graph.write_edges import write_edges
from khop.importing.edge_reader import EdgeImport, EdgeReader, NodeTableIds, fitted_columns
from khop.importing.encoders import stored
from khop.importing.id_column import id_kind, keys_of
from khop.importing.node_columns import LABEL, NodeReader, write_nodes
from khop.importing.row_splits import CutOffs
from khop.importing.rows import Rows
from khop.importing.source import OpenSource, SourceFolder
from khop.importing.spec import EdgeRules, Spec, Unit
from khop.importing.times import finest, unit_of
from khop.kernels.id_table import id_table
from khop.schema import EdgeType, edge_type_of

DOCUMENT = "import.json"
FORMAT = "khop-import 1"
DEFAULT_MEMORY = 2 << 30


@dataclass(frozen=True)
class Imported:
    """Counts of an import, for people."""

    path: Path
    nodes: Mapping[str, int]
    edges: Mapping[str, int]
    notes: tuple[str, ...]  # rows left out, unknown categories

    def __str__(self) -> str:
        nodes = ", ".join(f"{count:,} {node_type}" for node_type, count in self.nodes.items())
        edges = ", ".join(f"{count:,} {edge_type}" for edge_type, count in self.edges.items())
        return "\n".join([f"{self.path}: {nodes}; {edges or 'no edges'}", *self.notes])


@dataclass(eq=False)
class _Import:
    """The state of an import: opened tables, ids, edges."""

    spec: Spec
    sources: Mapping[str, OpenSource]  # by node type
    edge_sources: Mapping[EdgeType, OpenSource]
    edge_keys: Mapping[EdgeType, str]
    unit: Unit
    cut_offs: CutOffs | None
    threads: int
    memory: int
    notice: ProgressCallback
    node_times: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    touched: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by an edge before validation
    timed: dict[EdgeType, bool] = field(default_factory=dict)
    ids: dict[str, NodeTableIds] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rules(self) -> dict[EdgeType, EdgeRules]:
        return dict(self.spec.edge_types())


def run_import(
    spec: Spec,
    out: Path,
    folder: SourceFolder,
    *,
    threads: int = 1,
    memory: int = DEFAULT_MEMORY,
    notice: ProgressCallback | None = None,
) -> Imported:
    """Write a graph folder from the tables of a spec, complete or not at all.

    The result depends on the rows and their order alone, not on threads or the grouping of rows.
    """
    refuse_existing(out)
    check_names(spec.nodes, "node type")
    check_edge_types([edge_type for edge_type, _ in spec.edge_types()])
    work = _opened(spec, folder, threads, memory, notice or _silent)
    _read_ids(work)
    with new_folder(out) as hidden:
        runs = hidden / "runs"
        runs.mkdir()
        edges = [_spill_edges(work, edge_type, runs) for edge_type in work.rules()]
        writer = FolderWriter(hidden, Meter(_folder_bytes(work, edges), work.notice))
        nodes = [_write_nodes(work, node_type, writer) for node_type in spec.nodes]
        edge_entries = [entry for one in edges for entry in one.write(writer)]
        rmtree(runs)
        documents = write_documents(
            hidden, {DOCUMENT: _document(work, dict(zip(spec.nodes, nodes, strict=True)), edges)}
        )
        node_entries = tuple(entry for entry, _ in nodes)
        write_manifest(
            hidden, Manifest(node_entries, tuple(edge_entries), writer.arrays, documents=documents)
        )
    counts = {entry.type: entry.count for entry in node_entries}
    sizes = {" ".join(entry.type): entry.count for entry in edge_entries}
    return Imported(out, counts, sizes, tuple(work.notes))


def _silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def _folder_bytes(work: _Import, edges: list[_SpilledEdges]) -> int:
    """Return about the bytes of the folder's edges: what progress is measured by."""
    counts = {node_type: len(of_type.table) for node_type, of_type in work.ids.items()}
    return sum(
        8 * counts[one.plan.edge_type[2]] + one.count * (one.spill.row_bytes - 4)
        for of_table in edges
        for one in of_table.runs
    )


def _opened(spec: Spec, folder: SourceFolder, threads: int, memory: int, notice: ProgressCallback) -> _Import:
    sources = {
        node_type: OpenSource.open(node, f"nodes.{node_type}", folder)
        for node_type, node in spec.nodes.items()
        if node.has_rows
    }
    edge_sources: dict[EdgeType, OpenSource] = {}
    keys: dict[EdgeType, str] = {}
    for name, edge in spec.edges.items():
        keys[edge_type_of(name)] = f'edges."{name}"'
        edge_sources[edge_type_of(name)] = OpenSource.open(edge, f'edges."{name}"', folder)
    for number, table in enumerate(spec.edges_from):
        opened = OpenSource.open(table, f"edges_from[{number}]", folder)
        for at, typed in enumerate(table.edges):
            key = f"edges_from[{number}].edges[{at}]"
            keys[edge_type_of(typed.type)] = key
            edge_sources[edge_type_of(typed.type)] = opened.filtered(typed.where, f"{key}.where")
    unit = spec.time_unit or finest(_units([*sources.values(), *edge_sources.values()]))
    split = None if spec.splits is None else spec.splits.as_split()
    cut_offs = None if split is None else CutOffs.of(split, unit, "splits.time")
    work = _Import(spec, sources, edge_sources, keys, unit, cut_offs, threads, memory, notice)
    _check(work)
    return work


def _units(sources: list[OpenSource]) -> list[Unit]:
    found: list[Unit] = []
    for source in sources:
        name = source.spec.time
        if name is not None:
            source.check({name: f"{source.key}.time"})
            dtype = source.table.schema.field(name).type
            found.append(unit_of(dtype, source.time_format, f"{source.key}.time"))
    return found


def _check(work: _Import) -> None:
    """Raise ValueError for columns that do not exist and splits that cannot be made, before rows are read."""
    for node_type, source in work.sources.items():
        source.check(_node_reader(work, node_type, None).columns())
        node, split = work.spec.nodes[node_type], work.spec.node_split(node_type)
        if node.label is not None and split is not None and split.time is not None and node.time is None:
            raise ValueError(
                f"nodes.{node_type}: its labels have no times, and the split is by time; give time = ..., or "
                "split = { ratio = [0.8, 0.1, 0.1] }"
            )
    for edge_type in work.rules():
        reader = _edge_reader(work, edge_type)
        reader.source.check(reader.columns())
    for node_type, node in work.spec.nodes.items():
        columns = []
        if node_type in work.sources:
            columns.append((f"nodes.{node_type}.id", *_typed(work.sources[node_type], node.id or "")))
        for edge_type, rules in work.rules().items():
            for name, end in ((rules.source, edge_type[0]), (rules.destination, edge_type[2])):
                if end == node_type:
                    key = f"{work.edge_keys[edge_type]}.{'source' if name == rules.source else 'destination'}"
                    columns.append((key, *_typed(work.edge_sources[edge_type], name)))
        kind = id_kind(columns, node.id_type, node_type)
        work.ids[node_type] = NodeTableIds(kind, id_table(kind))


def _typed(source: OpenSource, column: str) -> tuple[Any, bool]:
    return source.table.schema.field(column).type, source.is_untyped


def _node_reader(work: _Import, node_type: str, touched: npt.NDArray[np.bool_] | None) -> NodeReader:
    node = work.spec.nodes[node_type]
    kind = work.ids[node_type].kind if node_type in work.ids else "string"
    split = node.split
    if split is None and node.label is not None:
        split = work.spec.node_split(node_type)
    return NodeReader(
        node_type, node, work.sources[node_type], kind, work.unit, split, work.cut_offs, touched, work.threads
    )


def _edge_reader(work: _Import, edge_type: EdgeType) -> EdgeReader:
    return EdgeReader(
        edge_type, work.rules()[edge_type], work.edge_sources[edge_type], work.edge_keys[edge_type],
        work.unit, work.cut_offs, work.ids, work.threads,
    )  # fmt: skip


def _read_ids(work: _Import) -> None:
    """Number the nodes: rows of node tables, then ids that edges add, in the order of the spec."""
    for node_type, source in work.sources.items():
        work.notice(f"ids of {node_type}", 0, 0)
        _number_rows(work, node_type, source)
    for edge_type, rules in work.rules().items():
        adds = [end for end in (edge_type[0], edge_type[2]) if end not in work.sources]
        if rules.orphans == "add" or adds:
            _edge_reader(work, edge_type).add_ends(
                {edge_type[0], edge_type[2]} if rules.orphans == "add" else set(adds)
            )
    for node_type, of_type in work.ids.items():
        work.touched[node_type] = np.zeros(len(of_type.table), bool)
        if node_type in work.node_times and len(work.node_times[node_type]) != len(of_type.table):
            raise ValueError(
                f'edges add nodes to {node_type!r}, whose nodes have times; give orphans = "drop", or '
                f"complete the table of nodes.{node_type}"
            )


def _number_rows(work: _Import, node_type: str, source: OpenSource) -> None:
    column, of_type = work.spec.nodes[node_type].id, work.ids[node_type]
    assert column is not None
    reader, times = _node_reader(work, node_type, None), []
    wanted = [column] if reader.spec.time is None else [column, reader.spec.time]
    pieces: list[tuple[int, Rows]] = []  # without values: the places of rows, for errors
    for rows in in_order(source.pieces(wanted), work.threads):
        first = len(of_type.table)
        keys = keys_of(rows.column(column), of_type.kind, f"nodes.{node_type}.id", rows.row)
        pieces.append((first, Rows(rows.batch.select([]), rows.place, rows.numbers)))
        twice = of_type.table.append(keys)
        if twice >= 0:
            before = int(of_type.table.find(keys[twice : twice + 1])[0])
            at, piece = next((begin, one) for begin, one in reversed(pieces) if begin <= before)
            value = rows.column(column)[twice].as_py()
            raise ValueError(
                f"{rows.row(twice)}: nodes.{node_type}.id is {value!r}, and so is "
                f"{piece.row(before - at)}; ids are unique, remove one of the rows"
            )
        of_rows = reader.times(rows)
        times += [] if of_rows is None else [of_rows]
    if reader.spec.time is not None:
        work.node_times[node_type] = np.concatenate(times) if times else np.zeros(0, np.int64)


def _spill_edges(work: _Import, edge_type: EdgeType, runs: Path) -> _SpilledEdges:
    """Read the edges of a type once more, with their reverses, into files sorted later."""
    reader, rules, name = _edge_reader(work, edge_type), work.rules()[edge_type], " ".join(edge_type)
    work.notice(f"edges {name}", 0, 0)
    edges = EdgeImport(reader, fitted_columns(reader), work.node_times, work.touched)
    types = [edge_type]
    if rules.reverse is not None:
        types.append((edge_type[2], rules.reverse, edge_type[0]))
    share = work.memory // (2 * len(types))
    spilled = tuple(
        EdgeRuns(runs / f"{len(work.timed)}-{number}", edges.plan(one), share, work.threads)
        for number, one in enumerate(types)
    )
    spill(spilled, edges.tasks())
    if rules.orphans == "refuse":
        edges.counted.refuse_orphans()
    for count, what in (
        (edges.counted.num_orphans, "edges without a node at an end left out"),
        (edges.counted.num_nulls, "edges with a null end left out"),
    ):
        if count:
            work.notes.append(f"{name}: {count:,} {what}")
    work.timed[edge_type] = edges.is_timed
    return _SpilledEdges(edges, spilled)


@dataclass(frozen=True, eq=False)
class _SpilledEdges:
    edges: EdgeImport
    runs: tuple[EdgeRuns, ...]  # of the type, and of its reverse

    def write(self, writer: FolderWriter) -> list[EdgeEntry]:
        types = [one.plan.edge_type for one in self.runs]
        entries = []
        for one, back in zip(self.runs, reversed(types), strict=True):
            entries.append(write_edges(one, writer, back if len(types) == 2 else None))
            one.close()
        return entries


def _write_nodes(work: _Import, node_type: str, writer: FolderWriter) -> tuple[NodeEntry, Mapping[str, Any]]:
    count, of_type = len(work.ids[node_type].table), work.ids[node_type]
    if node_type not in work.sources:
        return NodeEntry(node_type, count), {"id": {"kind": of_type.kind}}
    work.notice(f"columns of {node_type}", 0, 0)
    is_touched = work.cut_offs is not None and any(
        is_timed and node_type in (edge_type[0], edge_type[2]) for edge_type, is_timed in work.timed.items()
    )
    reader = _node_reader(work, node_type, work.touched[node_type] if is_touched else None)
    found = write_nodes(reader, count, writer)
    for name, unknown in found.unknown.items():
        if unknown:
            what = "labels of classes" if name == LABEL else "rows with words or categories"
            work.notes.append(f"{node_type}.{name}: {unknown:,} {what} that training lacks")
    return found.entry, found.document


def _document(
    work: _Import, nodes: Mapping[str, tuple[NodeEntry, Mapping[str, Any]]], edges: list[_SpilledEdges]
) -> bytes:
    """Return what later data and runs need: unit, cut-offs, encoders, classes. No path, filter or secret."""
    content: dict[str, Any] = {"format": FORMAT, "time_unit": work.unit}
    if work.cut_offs is not None:
        content["time_split"] = {"val": work.cut_offs.val, "test": work.cut_offs.test}
    content["nodes"] = {node_type: dict(document) for node_type, (_, document) in nodes.items()}
    content["edges"] = {
        " ".join(one.edges.reader.edge_type): {
            "source": one.edges.reader.rules.source,
            "destination": one.edges.reader.rules.destination,
            "columns": [{"name": name, **stored(encoder)} for name, encoder in one.edges.encoders.items()],
        }
        for one in edges
    }
    return json.dumps(content, indent=1, ensure_ascii=True).encode("ascii") + b"\n"
