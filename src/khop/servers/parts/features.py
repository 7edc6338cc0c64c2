"""Columns in parts on several servers, gathered as if every row were local.

Rows of other parts that a server keeps: the ones used last, within a number of bytes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.distributed.exchange.row_wire import RowRequest, Wire, rows_of_answer, stored_dtype, written
from khop.distributed.partitioned_features import (
    RemoteRows,
    RowQuery,
    RowServer,
    check_wanted,
    columns_by_count,
)
from khop.graph.features.store import FeatureStoreBase, Gathered, Wanted
from khop.graph.features.store import Rows as FeatureRows
from khop.graph.features.table import ColumnPieces, read_rows
from khop.graph.partitions.local_partitions import LocalPartitionFeatures
from khop.graph.partitions.parts_folder import PartsFolder
from khop.schema import ColumnSpec, Specs, Type
from khop.servers.messages import OctetsAnswer, PartRowsOf
from khop.servers.parts.exchange import PartExchange

WAYS = 8  # places for a row
MOST_TABLES = 64  # clients choose columns
_BOOKS = 16  # bytes of an id and of the time of its last use

Rows = Mapping[str, Tensor]  # by column: (n, ...), as stored


@dataclass(frozen=True, eq=False)
class Kept:
    """The rows of a request that were kept, and the request for the others."""

    found: Tensor  # bool (n): which rows of the request were kept
    rows: Rows  # (found, ...)
    missing: RowRequest

    def joined(self, fetched: Rows) -> dict[str, Tensor]:
        """Return all rows of the request, in the order of its ids; `fetched` are the missing ones."""
        if not self.rows:
            return dict(fetched)
        joined = {}
        for name, rows in fetched.items():
            out = rows.new_empty((self.found.numel(), *rows.shape[1:]))
            out[self.found], out[~self.found] = self.rows[name], rows
            joined[name] = out
        return joined


class _Table:
    """Kept rows of some columns of one type. An id has `WAYS` places; a new row takes the one used first."""

    def __init__(self, specs: Mapping[str, ColumnSpec], sets: int) -> None:
        self.ids = torch.full((sets, WAYS), -1, dtype=torch.int64)
        self._used = torch.zeros((sets, WAYS), dtype=torch.int64)
        self._rows = {
            name: torch.empty((sets * WAYS, *spec.shape), dtype=stored_dtype(spec))
            for name, spec in specs.items()
        }

    def kept(self, ids: Tensor, now: int) -> tuple[Tensor, Rows]:
        """Return for each id if it is kept, bool (n), and the rows of these."""
        sets = ids % len(self.ids)
        same = self.ids[sets] == ids[:, None]
        found = same.any(1)
        places = (sets * WAYS + same.int().argmax(1))[found]
        self._used.view(-1)[places] = now
        return found, {name: rows[places] for name, rows in self._rows.items()}

    def keep(self, ids: Tensor, rows: Rows, now: int) -> None:
        """Keep rows of unique ids. Of several ids that would take one place, one is kept."""
        sets = ids % len(self.ids)
        places = sets * WAYS + self._used[sets].argmin(1)
        tags = self.ids.view(-1)
        tags[places] = ids
        won = tags[places] == ids
        self._used.view(-1)[places] = now
        for name, kept in self._rows.items():
            kept[places[won]] = rows[name][won]


@dataclass(eq=False)
class RowCache:
    """Rows of other parts in at most `most_bytes` of memory, by type and columns. Threads may share it.

    Tables share the memory by the sizes of what they could keep. A table of columns that were not requested
    before takes its share from the others, which begin anew. Rows are kept as stored.
    """

    most_bytes: int
    specs: Specs
    counts: Mapping[Type, int]  # rows of all parts by type
    _tables: dict[tuple[Type, tuple[str, ...]], _Table | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _now: int = 0
    _hits: int = 0
    _misses: int = 0

    def kept(self, request: RowRequest, first: int) -> Kept:
        """Return the rows of a request that are kept; its ids count from `first`."""
        with self._lock:
            table = self._table(request)
            if table is None or not request.ids.numel():
                return Kept(torch.zeros(request.ids.numel(), dtype=torch.bool), {}, request)
            self._now += 1
            found, rows = table.kept(request.ids + first, self._now)
            hits = int(found.sum())
            self._hits += hits
            self._misses += found.numel() - hits
        if not hits:
            return Kept(found, {}, request)
        return Kept(found, rows, replace(request, ids=request.ids[~found]))

    def keep(self, request: RowRequest, first: int, rows: Rows) -> None:
        """Keep the rows of an answered request; its ids count from `first`."""
        with self._lock:
            table = self._table(request)
            if table is not None and request.ids.numel():
                self._now += 1
                table.keep(request.ids + first, rows, self._now)

    def counters(self) -> Mapping[str, int]:
        """Return the rows taken from the cache and the rows asked of other servers, and the bytes kept."""
        with self._lock:
            tables = {key: table for key, table in self._tables.items() if table is not None}
            size = sum(table.ids.numel() * self._row_bytes(*key) for key, table in tables.items())
            return {"cached rows": self._hits, "fetched rows": self._misses, "cache bytes": size}

    def _table(self, request: RowRequest) -> _Table | None:
        key = (request.type_, request.columns)
        if key not in self._tables and len(self._tables) < MOST_TABLES:
            self._tables[key] = None
            self._divide()
        return self._tables.get(key)

    def _divide(self) -> None:
        """Make all tables anew, each with its share of the memory."""
        full = {key: self._row_bytes(*key) * self._sets(key[0]) * WAYS for key in self._tables}
        share = min(1.0, self.most_bytes / max(1, sum(full.values())))
        for key in self._tables:
            self._tables[key] = None  # before new ones are allocated
        for (type_, columns), size in full.items():
            sets = int(share * size) // (self._row_bytes(type_, columns) * WAYS)
            specs = {name: self.specs[type_][name] for name in columns}
            self._tables[type_, columns] = _Table(specs, sets) if sets else None

    def _sets(self, type_: Type) -> int:
        return -(-self.counts[type_] // WAYS)

    def _row_bytes(self, type_: Type, columns: Sequence[str]) -> int:
        specs = (self.specs[type_][name] for name in columns)
        return _BOOKS + sum(math.prod(spec.shape) * stored_dtype(spec).itemsize for spec in specs)


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, eq=False)
class SharedFeatures(FeatureStoreBase):
    """A feature store over the rows of one part; other servers send the rows of the other parts.

    A gather asks each part that has some of the rows, all at once, with one request for all types and
    columns. Ids are sent ascending and unique, as differences. Threads may share the store.
    """

    pieces: Mapping[Type, ColumnPieces]  # the rows of this part
    column_specs: Specs
    offsets: Mapping[Type, Sequence[int]]  # first id of each part, and the end of the last
    exchange: PartExchange
    cache: RowCache  # of rows of other parts

    @classmethod
    def of(cls, folder: PartsFolder, exchange: PartExchange, cache_bytes: int = 0) -> SharedFeatures:
        """Return the columns of a graph, of which one part is open.

        Rows of other parts are kept in `cache_bytes` of memory.
        """
        schema, book = folder.schema, folder.book
        types: list[Type] = [*schema.node_types, *schema.edge_types]
        offsets = {t: book.offsets[t] if isinstance(t, str) else book.first_edges(t) for t in types}
        specs: Specs = {t: schema.columns.get(t, {}) for t in types}
        cache = RowCache(cache_bytes, specs, {t: ends[-1] for t, ends in offsets.items()})
        return cls(LocalPartitionFeatures(folder).pieces, specs, offsets, exchange, cache)

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        return self.column_specs

    def local_rows(self, type_: Type) -> range:
        """Return the rows of this part."""
        return range(*self._span(type_, self.exchange.part))

    def answers(self) -> RowServer:
        """Return the answers to requests for rows of this part."""
        counts = {t: len(self.local_rows(t)) for t in self.specs}
        return RowServer(self.pieces, self.specs, counts, Wire.STORED)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the requested columns, one row per id in the order of the ids.

        ValueError names a type, a column or a row that does not exist.
        """
        check_wanted(wanted, self.specs, self.offsets)
        rows = [query for type_, rows in wanted.items() for query in self._rows_of(type_, rows)]
        of_parts = self._of_parts(rows)
        found: Gathered = {type_: {} for type_ in wanted}
        for number, each in enumerate(rows):
            pieces = {
                name: [*self.pieces[each.type_][name], *(of_part[number][name] for of_part in of_parts)]
                for name in each.columns
            }
            places = FeatureRows(each.rows.places, each.columns, as_float32=wanted[each.type_].as_float32)
            found[each.type_] |= read_rows(pieces, self.specs[each.type_], each.type_, places)
        return {type_: {name: found[type_][name] for name in rows.columns} for type_, rows in wanted.items()}

    def _of_parts(self, rows: Sequence[RowQuery]) -> list[list[dict[str, Tensor]]]:
        """Return, for each part, the rows of each query that are not of this part: kept, or fetched now."""
        parts = range(len(self.exchange.others) + 1)
        kept = {part: [self._kept(part, each) for each in self._requests(part, rows)] for part in parts}
        missing = {part: [each.missing for each in of_part] for part, of_part in kept.items()}
        queries = {}
        for part in self.exchange.others:
            if any(each.ids.numel() for each in missing[part]):
                queries[part] = PartRowsOf(written(missing[part], self.specs))

        def read(part: int, answer: OctetsAnswer) -> list[dict[str, Tensor]]:
            return rows_of_answer(answer.content, missing[part], self.specs, Wire.STORED)

        _, received = self.exchange.ask("part rows", queries, OctetsAnswer, read, lambda: None)
        for part, fetched in received.items():
            for request, found in zip(missing[part], fetched, strict=True):
                self.cache.keep(request, self._span(request.type_, part)[0], found)
        nothing = [
            rows_of_answer(_NO_BYTES, _without_ids(missing[part]), self.specs, Wire.STORED) for part in parts
        ]
        return [
            [
                each.joined(rows)
                for each, rows in zip(kept[part], received.get(part, nothing[part]), strict=True)
            ]
            for part in parts
        ]

    def _kept(self, part: int, request: RowRequest) -> Kept:
        return self.cache.kept(request, self._span(request.type_, part)[0])

    def _rows_of(self, type_: Type, rows: FeatureRows) -> list[RowQuery]:
        """Return one query per group of columns that are requested for the same number of ids."""
        span = self._span(type_, self.exchange.part)
        return [
            RowQuery.of(type_, columns, RemoteRows.of(rows.ids[:count], span), self.offsets[type_])
            for count, columns in columns_by_count(rows)
        ]

    def _requests(self, part: int, rows: Sequence[RowQuery]) -> list[RowRequest]:
        return [each.request(part, self._span(each.type_, part)[0]) for each in rows]

    def _span(self, type_: Type, part: int) -> tuple[int, int]:
        return self.offsets[type_][part], self.offsets[type_][part + 1]


def _without_ids(requests: Sequence[RowRequest]) -> list[RowRequest]:
    return [RowRequest(each.type_, each.columns, each.ids[:0]) for each in requests]
