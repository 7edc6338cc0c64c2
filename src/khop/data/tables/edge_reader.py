"""Reading of an edge table: endpoints as node ids, times and columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.data.tables.encoders import ColumnEncoder, fitter
from khop.data.tables.labels import TEST, TRAIN, VAL, CutOffs, Parts, keys_of, parts_of
from khop.data.tables.later_spec import SPLIT, TIME, GivenEncoders
from khop.data.tables.node_columns import raw_dtype, raw_values
from khop.data.tables.packages import numpy_of
from khop.data.tables.rows import Piece, TableRows
from khop.data.tables.source import OpenSource
from khop.data.tables.spec import EdgeRules, Raw, Unit
from khop.data.tables.times import to_unit
from khop.graph.atomic import in_order
from khop.graph.edge_runs import EdgeChunk, EdgePlan
from khop.kernels.id_table import IdTable, Keys, Kind, keys_at
from khop.schema import EdgeType

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeTableIds:
    """Ids of one node type."""

    kind: Kind
    table: IdTable[Any]


@dataclass(eq=False)
class Counted:
    """Dropped rows of an edge table, counted by piece. Threads may count different pieces."""

    orphans: dict[int, tuple[int, str]] = field(default_factory=dict)  # count, and a text about the first
    nulls: dict[int, int] = field(default_factory=dict)
    unknown: dict[tuple[str, int], int] = field(default_factory=dict)  # by column and piece

    @property
    def num_orphans(self) -> int:
        """Edges with an unknown end."""
        return sum(count for count, _ in self.orphans.values())

    def num_unknown(self, column: str) -> int:
        """Return the number of edges with a category or word that is not in training rows."""
        return sum(count for (name, _), count in self.unknown.items() if name == column)

    def left_out(self, name: str) -> list[str]:
        """Return a text for each kind of dropped edges of the type `name`."""
        faults = {"an unknown": self.num_orphans, "a null": sum(self.nulls.values())}
        counted = {fault: "1 edge" if count == 1 else f"{count:,} edges" for fault, count in faults.items()}
        return [
            f"{name}: left out {counted[fault]} with {fault} source or destination"
            for fault, count in faults.items()
            if count
        ]

    def refuse_orphans(self) -> None:
        """Raise ValueError for orphans, with the first one and their number."""
        if self.num_orphans:
            _, first = self.orphans[min(self.orphans)]
            which = "1 edge has" if self.num_orphans == 1 else f"{self.num_orphans:,} edges have"
            raise ValueError(
                f'{first}; {which} no node at an end; give orphans = "drop" or "add", or complete the nodes'
            )


@dataclass(frozen=True, eq=False)
class EdgeReader:
    """Reader of one edge type's table: tasks return its edges and those of the reverse type."""

    edge_type: EdgeType
    rules: EdgeRules
    source: OpenSource
    key: str  # in the spec
    unit: Unit
    cut_offs: CutOffs | None
    ids: Mapping[str, NodeTableIds]
    threads: int
    given: GivenEncoders | None  # for later data: encoders, and the nodes of the graph
    node_times: Mapping[str, Int64s]  # by node type with times
    touched: Mapping[str, npt.NDArray[np.bool_]]  # nodes with an edge before validation; written
    encoders: dict[str, ColumnEncoder] = field(default_factory=dict)  # filled before edges are read
    counted: Counted = field(default_factory=Counted)

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The columns of source and destination, each with its node type."""
        source, _, destination = self.edge_type
        return (self.rules.source, source), (self.rules.destination, destination)

    @property
    def has_times(self) -> bool:
        """True if the edges have times."""
        return self.source.spec.time is not None

    def columns(self) -> dict[str, str]:
        """Return the columns that are read, each with its key in the spec."""
        rules = self.rules
        found = {rules.source: f"{self.key}.source"}
        found.setdefault(rules.destination, f"{self.key}.destination")
        if self.source.spec.time is not None:
            found.setdefault(self.source.spec.time, f"{self.key}.time")
        if rules.split is not None and rules.split.column is not None:
            found.setdefault(rules.split.column, f"{self.key}.split.column")
        for name, column in rules.columns.items():
            found.setdefault(column.column or name, f"{self.key}.columns.{name}")
        return found

    def without_nulls(self, rows: TableRows) -> tuple[TableRows, int]:
        """Return the rows with two ends, if others are dropped, and the number of dropped rows."""
        if self.rules.nulls == "refuse":
            return rows, 0
        valid = np.ones(len(rows), bool)
        for column, _ in self.ends:
            valid &= numpy_of(rows.column(column).is_valid())
        return rows.keep(valid), int((~valid).sum())

    def add_ends(self, node_types: Collection[str]) -> None:
        """Give ids to unknown ends of some node types: all sources, then all destinations.

        For later data, ends that are nodes of the graph get ids too.
        """
        for column, node_type in self.ends:
            if node_type not in node_types and self.given is None:
                continue
            of_type = self.ids[node_type]
            pieces = self.source.pieces([one for one, _ in self.ends])
            for whole in in_order(pieces, self.threads):
                rows, _ = self.without_nulls(whole)
                array = rows.column(column)
                keys = keys_of(array, of_type.kind, f"{self.key}: {column}", rows.row)
                if node_type not in node_types:
                    keys = self._in_graph(node_type, keys)
                of_type.table.add(keys)

    def _in_graph(self, node_type: str, keys: Keys) -> Keys:
        """Return the keys that are nodes of the graph, but not rows of the later data."""
        assert self.given is not None
        missing = keys_at(keys, np.flatnonzero(self.ids[node_type].table.find(keys) < 0))
        return keys_at(missing, np.flatnonzero(self.given.rows(node_type, missing) >= 0))

    def found(self, rows: TableRows) -> tuple[Int64s, Int64s]:
        """Return the nodes at both ends of each row; -1 for unknown ids."""
        ends = []
        for column, node_type in self.ends:
            of_type = self.ids[node_type]
            keys = keys_of(rows.column(column), of_type.kind, f"{self.key}: {column}", rows.row)
            ends.append(of_type.table.find(keys))
        return ends[0], ends[1]

    def times(self, rows: TableRows) -> Int64s | None:
        """Return the times of rows in the unit of the graph."""
        name = self.source.spec.time
        if name is None:
            return None
        return to_unit(rows.column(name), self.source.time_format, self.unit, f"{self.key}.time", rows.row)

    def parts(self, rows: TableRows) -> Parts | None:
        """Return the part of each edge by the split of the type; None without one."""
        split = self.rules.split
        times = self.times(rows) if split is not None and split.time is not None else None
        return parts_of(split, rows, [column for column, _ in self.ends], times, self.unit, self.key)

    @property
    def stored_columns(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each edge column."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, column in self.rules.columns.items():
            if name in self.encoders:
                width = self.encoders[name].width
                dtype = "int64" if column.kind == "relation" else "float32"
                found[name] = (dtype, () if width == 1 else (width,))
            else:
                assert isinstance(column, Raw)
                stored = self.source.schema.field(column.column or name).type
                found[name] = (raw_dtype(stored, column.dtype), ())
        if self.has_times:
            found[TIME] = ("int64", ())
        if self.rules.split is not None:
            found[SPLIT] = ("int8", ())
        return found

    @property
    def is_timed(self) -> bool:
        """True if the edges or nodes at their ends have times."""
        return self.has_times or any(end in self.node_times for _, end in self.ends)

    def latest(self, rows: TableRows) -> Int64s | None:
        """Return the latest time of each edge and its two nodes; None if none of them has times."""
        (source, _, destination), times = self.edge_type, self.times(rows)
        if source not in self.node_times and destination not in self.node_times:
            return times
        sources, destinations = self.found(rows)
        return self._later(self._later(times, source, sources), destination, destinations)

    def plan(self, edge_type: EdgeType) -> EdgePlan:
        """Return the plan of the edges, or of their reverses."""
        source, _, destination = edge_type
        is_sorted = self.has_times or source in self.node_times
        if self.given is not None:  # sorted later with the graph's edges, whose nodes have the times
            is_sorted = self.has_times and self.rules.duplicates in ("first", "last", "sum")
        is_later_of_both = self.has_times and source in self.node_times
        return EdgePlan(
            edge_type,
            len(self.ids[source].table),
            len(self.ids[destination].table),
            self.stored_columns,
            TIME if is_sorted else "",
            self.rules.duplicates,
            "given" if is_later_of_both else "column",
            self._parts(),
        )

    def _parts(self) -> dict[str, tuple[int, ...]]:
        """Return the bounds between which edges are duplicates.

        A training edge is kept even if a later edge has the same ends. Node times are equal for all edges of
        a pair, so only the edge's time matters. In the order of time, "first" keeps the training edge.
        """
        cut_offs, rules, parts = self.cut_offs, self.rules, dict[str, tuple[int, ...]]()
        if rules.duplicates not in ("first", "last", "sum"):
            return parts
        is_whole = rules.duplicates == "first" and self.has_times
        if self.has_times:
            parts[TIME] = () if cut_offs is None or is_whole else (cut_offs.val, cut_offs.test)
        if rules.split is not None and not (is_whole and rules.split.time is not None):
            parts[SPLIT] = (TRAIN, VAL, TEST)
        return parts

    def tasks(self) -> Iterator[Callable[[], tuple[EdgeChunk, ...]]]:
        """Yield readers of consecutive edges: a chunk of the type, and one of its reverse type, if any."""
        for number, piece in enumerate(self.source.pieces(list(self.columns()))):
            yield partial(self._chunks, number, piece)

    def _chunks(self, number: int, piece: Piece) -> tuple[EdgeChunk, ...]:
        rows, self.counted.nulls[number] = self.without_nulls(piece())
        sources, destinations = self.found(rows)
        known = (sources >= 0) & (destinations >= 0)
        if not known.all():
            self.counted.orphans[number] = (int((~known).sum()), self._first_orphan(rows, sources, known))
        rows, sources, destinations = rows.keep(known), sources[known], destinations[known]
        columns = self._values(rows, number)
        own = columns.get(TIME)
        later = self._later(own, self.edge_type[0], sources)
        self._touch(sources, destinations, self._later(later, self.edge_type[2], destinations))
        forward = EdgeChunk(sources, destinations, columns, later)
        if self.rules.reverse is None:
            return (forward,)
        times = self._later(own, self.edge_type[2], destinations)
        return forward, EdgeChunk(destinations, sources, columns, times)

    def _later(self, own: Int64s | None, source_type: str, sources: Int64s) -> Int64s | None:
        """Return the later of an edge's time and its source's."""
        if source_type not in self.node_times:
            return own
        of_source = self.node_times[source_type][sources]
        return of_source if own is None else np.maximum(own, of_source)

    def _touch(self, sources: Int64s, destinations: Int64s, times: Int64s | None) -> None:
        cut_offs = self.cut_offs
        if times is None or cut_offs is None:
            return
        early = times < cut_offs.val
        self.touched[self.edge_type[0]][sources[early]] = True
        self.touched[self.edge_type[2]][destinations[early]] = True

    def _values(self, rows: TableRows, number: int) -> dict[str, npt.NDArray[Any]]:
        values: dict[str, npt.NDArray[Any]] = {}
        for name, column in self.rules.columns.items():
            array = rows.column(column.column or name)
            if name in self.encoders:
                encoded = self.encoders[name].encode(array, rows.row)
                self.counted.unknown[name, number] = encoded.unknown
                values[name] = encoded.values[:, 0] if encoded.values.shape[1] == 1 else encoded.values
            else:
                dtype = self.stored_columns[name][0]
                values[name] = raw_values(array, dtype, f"{self.key}.columns.{name}", rows)
        times, parts = self.times(rows), self.parts(rows)
        if times is not None:
            values[TIME] = times
        if parts is not None:
            values[SPLIT] = parts
        return values

    def _first_orphan(self, rows: TableRows, sources: Int64s, known: npt.NDArray[np.bool_]) -> str:
        """Describe the first edge with an unknown source or destination."""
        row = int(np.argmin(known))
        column, node_type = self.ends[0 if sources[row] < 0 else 1]
        value = rows.column(column)[row].as_py()
        return f"{rows.row(row)}: {self.key}: {column} is {value!r}, and no {node_type!r} has this id"


def fitted_columns(reader: EdgeReader) -> dict[str, ColumnEncoder]:
    """Read the columns with statistics, and return their encoders.

    Statistics use kept training edges with times before validation.
    """
    if reader.given is not None:
        return reader.given.encoders(reader.edge_type)
    columns = {name: one for name, one in reader.rules.columns.items() if not isinstance(one, Raw)}
    fitters = {name: fitter(one, f"{reader.key}.columns.{name}") for name, one in columns.items()}
    pieces = reader.source.pieces(statistics_columns(reader)) if fitters else iter(())
    for whole in in_order(pieces, reader.threads):
        rows, _ = reader.without_nulls(whole)
        if reader.rules.orphans == "drop":
            rows = rows.keep(np.min(reader.found(rows), axis=0) >= 0)
        parts = reader.parts(rows)
        allowed = np.ones(len(rows), bool) if parts is None else parts == TRAIN
        times = None if reader.cut_offs is None else reader.latest(rows)
        if times is not None and reader.cut_offs is not None:
            allowed &= times < reader.cut_offs.val
        seen = rows.keep(allowed)
        for name, one in fitters.items():
            counted = rows if columns[name].kind == "relation" else seen
            one.add(counted.column(columns[name].column or name), counted.row)
    return {name: one.encoder() for name, one in fitters.items()}


def statistics_columns(reader: EdgeReader) -> list[str]:
    """Return the columns that are read for statistics: the ends only if they decide which rows count.

    Looking up ids takes most of the time of an import. If orphans are refused, they are found when the edges
    are read again.
    """
    rules = reader.rules
    is_by_hash = rules.split is not None and rules.split.ratio is not None
    is_by_time = reader.cut_offs is not None or (rules.split is not None and rules.split.time is not None)
    is_by_nodes = reader.cut_offs is not None and any(end in reader.node_times for _, end in reader.ends)
    if "drop" in (rules.orphans, rules.nulls) or is_by_hash or is_by_nodes:
        return list(reader.columns())
    chosen = {one.column or name for name, one in rules.columns.items() if not isinstance(one, Raw)}
    if is_by_time and reader.source.spec.time is not None:
        chosen.add(reader.source.spec.time)
    if rules.split is not None and rules.split.column is not None:
        chosen.add(rules.split.column)
    return [name for name in reader.columns() if name in chosen]
