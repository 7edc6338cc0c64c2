"""Rows of other parts that a server keeps: the ones used last, within a number of bytes."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.exchange.row_wire import RowRequest, stored_dtype
from khop.schema import ColumnSpec, Specs, Type

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
