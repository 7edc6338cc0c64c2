"""Opened tables of an import, the ids of its nodes, and cached rows of CSV files.

Text parsing takes most of the time of an import. Rows of CSV files are therefore cached between passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.data.tables.databases import DatabaseTable
from khop.data.tables.edge_reader import EdgeReader, NodeTableIds
from khop.data.tables.files import CsvTable, MemoryTable, ParquetTable
from khop.data.tables.labels import CutOffs, id_kind, keys_of
from khop.data.tables.later_spec import FEATURES, LABEL, SPLIT, TIME, GivenEncoders
from khop.data.tables.node_columns import NodeReader
from khop.data.tables.packages import pa, pq
from khop.data.tables.rows import Piece, Place, Table, TableRows
from khop.data.tables.source import PART, OpenSource, ReadMeter, SourceFolder
from khop.data.tables.spec import EdgeRules, NodeSpec, Raw, Spec, Split, TypedEdges, Unit, Words
from khop.data.tables.times import finest, unit_of
from khop.graph.atomic import ProgressCallback, in_order, naming
from khop.graph.layout import check_edge_types, check_names
from khop.graph.node_ids import LABEL_TIME, stores_ids
from khop.kernels.id_table import Keys, id_table
from khop.schema import EdgeType


def check_file_names(spec: Spec) -> None:
    """Raise ValueError for an invalid file name, and for a column with the name of another array."""
    check_names(spec.nodes, "node type")
    reverses = [(t[2], rules.reverse, t[0]) for t, rules in spec.edge_types() if rules.reverse is not None]
    check_edge_types([*(edge_type for edge_type, _ in spec.edge_types()), *reverses])
    for node_type, node in spec.nodes.items():
        files = {name: one for name, one in node.columns.items() if isinstance(one, Raw | Words)}
        arrays = {
            FEATURES: "features" if len(files) < len(node.columns) else "",
            LABEL: "labels" if node.label is not None else "",
            TIME: "times" if node.time is not None else "",
            LABEL_TIME: "dates of labels" if node.label is not None and node.label.time is not None else "",
        }
        _check_columns(files, arrays, f"nodes.{node_type}")
    for _, edge_type, rules, table in spec.edge_tables():
        arrays = {SPLIT: "splits" if rules.split else "", TIME: "times" if table.time is not None else ""}
        _check_columns(rules.columns, arrays, f"edge type {' '.join(edge_type)!r}")


def _check_columns(columns: Mapping[str, Any], arrays: Mapping[str, str], key: str) -> None:
    check_names(columns, f"column of {key}")
    for name in columns:
        if taken := arrays.get(name):
            raise ValueError(
                f"{key}.columns.{name}: the {taken} are stored under this name; give the column another "
                f'one, as columns.own-{name} = {{ column = "{name}", ... }}'
            )


@dataclass(eq=False)
class ImportState:
    """The state of an import: opened tables, ids, edges."""

    spec: Spec
    sources: Mapping[str, OpenSource]  # by node type
    edge_sources: Mapping[EdgeType, OpenSource]
    edge_keys: Mapping[EdgeType, str]
    unit: Unit
    cut_offs: CutOffs | None
    threads: int
    memory: int
    meter: ReadMeter
    node_times: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    touched: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by an edge before validation
    timed: dict[EdgeType, bool] = field(default_factory=dict)
    ids: dict[str, NodeTableIds] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    given: GivenEncoders | None = None  # None: encoders are fitted to the rows
    rows: dict[str, int] = field(default_factory=dict)  # nodes from tables, by type; others are from edges

    def rules(self) -> dict[EdgeType, EdgeRules]:
        """Return the rules of each edge type."""
        return dict(self.spec.edge_types())

    def bound_ids(self, folder: Path) -> None:
        """Limit dictionaries of ids to half the budget; beyond it they use files in `folder`."""
        for of_type in self.ids.values():
            of_type.table.spill_beyond(self.memory // (2 * len(self.ids)), str(folder))


def opened(
    spec: Spec,
    folder: SourceFolder,
    threads: int,
    memory: int,
    notice: ProgressCallback,
    given: GivenEncoders | None = None,
) -> ImportState:
    """Open and check all tables before rows are read."""
    sources = {
        node_type: OpenSource.open(node, f"nodes.{node_type}", folder, node.also, node.id or "")
        for node_type, node in spec.nodes.items()
        if node.has_rows
    }
    keys = {edge_type: key for key, edge_type, _, _ in spec.edge_tables()}
    edge_sources: dict[EdgeType, OpenSource] = {}
    tables: dict[int, OpenSource] = {}
    for key, edge_type, rules, table in spec.edge_tables():
        if id(table) not in tables:
            tables[id(table)] = OpenSource.open(table, key.partition(".edges[")[0], folder)
        where = rules.where if isinstance(rules, TypedEdges) else None
        edge_sources[edge_type] = tables[id(table)].filtered(where, f"{key}.where")
    spec = _with_parts(spec, sources, edge_sources, folder)
    unit = spec.time_unit or finest(_units([*sources.values(), *edge_sources.values()]))
    cut_offs = None if spec.splits is None else CutOffs.of(spec.splits, unit, "splits.time")
    meter = ReadMeter(notice)
    nodes = {node_type: replace(source, meter=meter) for node_type, source in sources.items()}
    edges = {edge_type: replace(source, meter=meter) for edge_type, source in edge_sources.items()}
    work = ImportState(
        spec, nodes, edges, keys, unit, cut_offs, threads=threads, memory=memory, meter=meter, given=given
    )
    _check(work)
    return work


def _with_parts(
    spec: Spec, sources: dict[str, OpenSource], edge_sources: dict[EdgeType, OpenSource], folder: SourceFolder
) -> Spec:
    """Replace splits by files by splits by a column, which is added to the tables."""
    by_column, nodes = Split(column=PART), dict(spec.nodes)
    for node_type, source in sources.items():
        node, split = spec.nodes[node_type], spec.node_split(node_type)
        if split is None or not split.files or (node.split is None and node.label is None):
            continue
        key = "splits" if node.split is None else f"nodes.{node_type}.split"
        sources[node_type] = source.with_parts(split, folder, key, node.id or "")
        nodes[node_type] = node.model_copy(update={"split": by_column})
    edges = {}
    for key, edge_type, rules, _ in spec.edge_tables():
        if rules.split is not None and rules.split.files:
            source = edge_sources[edge_type]
            edge_sources[edge_type] = source.with_parts(rules.split, folder, f"{key}.split")
            edges[edge_type] = {"split": by_column}
    return spec.model_copy(update={"nodes": nodes}).with_edges(edges, {})


def _units(sources: list[OpenSource]) -> list[Unit]:
    found: list[Unit] = []
    for source in sources:
        label = source.spec.label if isinstance(source.spec, NodeSpec) else None
        names = {
            f"{source.key}.time": source.spec.time,
            f"{source.key}.label.time": label.time if label else None,
        }
        given = {key: name for key, name in names.items() if name is not None}
        source.check({name: key for key, name in given.items()})
        found += [unit_of(source.schema.field(n).type, source.time_format, key) for key, n in given.items()]
    return found


def _check(work: ImportState) -> None:
    """Raise ValueError for missing columns and impossible splits, before rows are read."""
    for node_type, source in work.sources.items():
        source.check(node_reader(work, node_type, None).columns())
        node, split = work.spec.nodes[node_type], work.spec.node_split(node_type)
        has_dates = node.time is not None or (node.label is not None and node.label.time is not None)
        if node.label is not None and split is not None and split.time is not None and not has_dates:
            raise ValueError(
                f"nodes.{node_type}: its labels have no times, and the split is by time; give time = ..., or "
                "label.time = ... if the nodes exist before, or split = { ratio = [0.8, 0.1, 0.1] }"
            )
    readers = [edge_reader(work, edge_type) for edge_type in work.rules()]
    for reader in readers:
        rules = reader.rules
        is_by_time = rules.split is not None and rules.split.time is not None
        if is_by_time and not reader.has_times:
            raise ValueError(
                f"{reader.key}.split.time: the edges have no times; give time = ..., or "
                "split = { ratio = [0.8, 0.1, 0.1] }"
            )
        reader.source.check(reader.columns())
    for node_type, node in work.spec.nodes.items():
        columns = []
        if node_type in work.sources:
            source, key = work.sources[node_type], f"nodes.{node_type}.id"
            columns.append((key, source.id_type(node.id or "", key), source.is_untyped))
        for reader in readers:
            for end, (name, of_end) in zip(("source", "destination"), reader.ends, strict=True):
                if of_end == node_type:
                    key = f"{reader.key}.{end}"
                    columns.append((key, reader.source.id_type(name, key), reader.source.is_untyped))
        kind = id_kind(columns, node.id_type, node_type)
        work.ids[node_type] = NodeTableIds(kind, id_table(kind))


def node_reader(work: ImportState, node_type: str, touched: npt.NDArray[np.bool_] | None) -> NodeReader:
    """Return the reader of a node type."""
    node = work.spec.nodes[node_type]
    kind = work.ids[node_type].kind if node_type in work.ids else "string"
    split = node.split
    if split is None and node.label is not None:
        split = work.spec.node_split(node_type)
    encoders = None if work.given is None else work.given.encoders(node_type)
    return NodeReader(
        node_type, node, work.sources[node_type], kind, work.unit, split, work.cut_offs, touched,
        work.threads, encoders,
    )  # fmt: skip


def edge_reader(
    work: ImportState, edge_type: EdgeType, touched: Mapping[str, npt.NDArray[np.bool_]] | None = None
) -> EdgeReader:
    """Return the reader of an edge type; it marks the nodes with an edge before validation in `touched`."""
    return EdgeReader(
        edge_type, work.rules()[edge_type], work.edge_sources[edge_type], work.edge_keys[edge_type],
        work.unit, work.cut_offs, work.ids, work.threads, work.given, work.node_times, touched or {},
    )  # fmt: skip


def read_ids(work: ImportState) -> None:
    """Number the nodes: rows of node tables, then ids that edges add, in the order of the spec."""
    for node_type, source in work.sources.items():
        work.meter.begin(f"ids of {node_type}")
        _number_rows(work, node_type, source)
    for edge_type, rules in work.rules().items():
        ends = {edge_type[0], edge_type[2]}
        adds = ends if rules.orphans == "add" else {end for end in ends if _is_from_edges(work, end)}
        if adds or work.given is not None:
            name = " ".join(edge_type)
            work.meter.begin(f"ids of {name}")
            before = {end: len(work.ids[end].table) for end in sorted(adds) if end in work.sources}
            edge_reader(work, edge_type).add_ends(adds)
            if work.given is None:  # for later data, nodes of the graph get ids too
                added = {end: len(work.ids[end].table) - count for end, count in before.items()}
                work.notes += [
                    f"{name}: {n:,} nodes of {end} added by edges" for end, n in added.items() if n
                ]
    for node_type, of_type in work.ids.items():
        work.touched[node_type] = np.zeros(len(of_type.table), bool)
        if node_type in work.node_times and len(work.node_times[node_type]) != len(of_type.table):
            raise ValueError(
                f'edges add nodes to {node_type!r}, whose nodes have times; give orphans = "drop", or '
                f"complete the table of nodes.{node_type}"
            )


def _is_from_edges(work: ImportState, node_type: str) -> bool:
    """Return True for a type without a table, whose nodes are the ids that edges name."""
    if work.given is not None and not work.given.is_from_edges(node_type):
        return False
    return node_type not in work.sources


def _number_rows(work: ImportState, node_type: str, source: OpenSource) -> None:
    column, of_type = work.spec.nodes[node_type].id, work.ids[node_type]
    assert column is not None
    reader, times = node_reader(work, node_type, None), []
    wanted = [column] if reader.spec.time is None else [column, reader.spec.time]
    if reader.spec.time is not None and reader.spec.label is not None:
        wanted = [*dict.fromkeys([*wanted, reader.spec.label.column])]
    pieces: list[tuple[int, TableRows]] = []  # without values: the positions of rows, for errors
    for rows in in_order(source.pieces(wanted), work.threads):
        first = len(of_type.table)
        keys = keys_of(rows.column(column), of_type.kind, f"nodes.{node_type}.id", rows.row)
        pieces.append((first, TableRows(rows.batch.select([]), rows.place, rows.numbers)))
        _refuse_known(work, node_type, keys, rows)
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
    work.rows[node_type] = len(of_type.table)
    if reader.spec.time is not None and work.given is None:
        work.node_times[node_type] = np.concatenate(times) if times else np.zeros(0, np.int64)


def _refuse_known(work: ImportState, node_type: str, keys: Keys, rows: TableRows) -> None:
    """Raise ValueError for a row of later data with the id of a node of the graph."""
    given = work.given
    if given is None or not stores_ids(given.folder, node_type):
        return
    known = np.flatnonzero(given.rows(node_type, keys) >= 0)
    if len(known):
        row = int(known[0])
        value = rows.column(work.spec.nodes[node_type].id or "")[row].as_py()
        raise ValueError(
            f"{rows.row(row)}: nodes.{node_type}.id is {value!r}, a node of {given.home}; tables "
            "of later data have new nodes only; remove the row, for example by where"
        )


_SAMPLE = 1 << 20  # bytes of a CSV file whose lines are counted
_CODECS = {".gz": "gzip", ".zst": "zstd"}


def rows_to_read(work: ImportState) -> int:
    """Estimate the rows to read in all passes.

    Edges are read for each end whose ids they add, for column statistics, and for sorting.
    """
    nodes = sum(table_rows(source) for source in work.sources.values())
    edges = sum(edge_passes(work, one) * table_rows(source) for one, source in work.edge_sources.items())
    return nodes + edges


def edge_passes(work: ImportState, edge_type: EdgeType) -> int:
    """Return the number of passes over the rows of an edge type."""
    rules, ends = work.rules()[edge_type], (edge_type[0], edge_type[2])
    if work.given is not None:  # later data: each end may be a node of the graph
        return 1 + len(ends)
    adding = [end for end in ends if rules.orphans == "add" or end not in work.sources]
    return 1 + len(adding) + any(not isinstance(one, Raw) for one in rules.columns.values())


def read_again(work: ImportState) -> list[list[EdgeType]]:
    """Return the edge types of each CSV table that is read more than once."""
    by_table: dict[int, list[EdgeType]] = {}
    for edge_type, source in work.edge_sources.items():
        if source.is_untyped:
            by_table.setdefault(id(source.table), []).append(edge_type)
    return [types for types in by_table.values() if sum(edge_passes(work, one) for one in types) > 1]


def table_rows(source: OpenSource) -> int:
    """Return the rows of a table before `where`, estimated for CSV; 0 for Arrow files."""
    match source.table:
        case ParquetTable(files=files):
            return sum(int(pq.read_metadata(path).num_rows) for _, path in files)
        case MemoryTable(table=table):
            return int(table.num_rows)
        case DatabaseTable():
            return source.table.num_rows
        case CsvTable(files=files):
            return sum(_num_lines(path) for _, path in files)
        case _:
            return 0


def _num_lines(path: Path) -> int:
    """Estimate the lines of a CSV file from its first bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        codec = _CODECS.get(path.suffix)
        stream = pa.CompressedInputStream(file, codec) if codec else file  # closes the file with it
        text, read = stream.read(_SAMPLE), file.tell()
    lines: int = text.count(b"\n")
    return lines if read >= size and len(text) < _SAMPLE else lines * size // max(1, read)


@dataclass(eq=False)
class KeptTable:
    """A table whose first complete pass also writes its rows to an Arrow file for later passes."""

    table: Table
    columns: tuple[str, ...]  # of all passes
    path: Path  # of the file, which exists after the first pass
    _places: tuple[Place, ...] | None = None  # of the file's batches, once it is complete

    @property
    def name(self) -> str:
        """Its files, for errors."""
        return self.table.name

    @property
    def schema(self) -> Any:
        """Names and types of its columns, as a pyarrow schema."""
        return self.table.schema

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have already been read."""
        if self._places is None:
            return self._first_pass(columns)
        return self._later_pass(columns, self._places)

    def _first_pass(self, columns: Sequence[str]) -> Iterator[Piece]:
        places = []
        schema = pa.schema([self.schema.field(name) for name in self.columns])
        with naming(self.path), pa.ipc.new_file(str(self.path), schema) as writer:  # closing also writes
            for piece in self.table.pieces(self.columns):
                rows = piece()
                writer.write_batch(rows.batch)
                places.append(rows.place)
                yield partial(TableRows, rows.batch.select(columns), rows.place)
        self._places = tuple(places)

    def _later_pass(self, columns: Sequence[str], places: Iterable[Place]) -> Iterator[Piece]:
        wanted = [self.columns.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        # Not memory-mapped: mapped pages would count as memory of the process.
        with pa.OSFile(str(self.path)) as file, pa.ipc.open_file(file, options=options) as reader:
            for number, place in enumerate(places):
                yield partial(TableRows, reader.get_batch(number).select(columns), place)


@contextmanager
def parsed_once(work: ImportState, folder: Path) -> Iterator[None]:
    """Cache the rows of CSV edge tables that are read more than once in files in `folder`."""
    before, sources, paths = work.edge_sources, dict(work.edge_sources), []
    for number, edge_types in enumerate(read_again(work)):
        columns = {edge_type: list(edge_reader(work, edge_type).columns()) for edge_type in edge_types}
        names = [name for edge_type in edge_types for name in before[edge_type].stored(columns[edge_type])]
        paths.append(folder / f"rows-{number}.arrow")
        table = KeptTable(before[edge_types[0]].table, tuple(dict.fromkeys(names)), paths[-1])
        sources.update({edge_type: replace(before[edge_type], table=table) for edge_type in edge_types})
    work.edge_sources = sources
    try:
        yield
    finally:
        work.edge_sources = before
        for path in paths:
            path.unlink(missing_ok=True)
