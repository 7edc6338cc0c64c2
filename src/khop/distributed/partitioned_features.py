"""Feature store over columns partitioned across owners, with a cache of recently used remote rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from khop.distributed.exchange.peers import Message, Writer
from khop.distributed.exchange.row_wire import (
    RowRequest,
    Wire,
    answer_bytes,
    is_rounded,
    largest,
    read,
    rounded,
    rows_of_answer,
    sent_rows,
    stored_dtype,
    wire_fields,
    written,
)
from khop.distributed.owners import NO_BYTES, Owners
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import CachePlan, FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.features.table import ColumnPieces, Piece, read_into, read_rows
from khop.graph.partitions.local_partitions import is_on_disk, keeping
from khop.kernels.owners import first_outside, remote_rows
from khop.schema import ColumnSpec, Schema, Specs, Type


@dataclass(frozen=True, eq=False)
class PartitionedFeatures(FeatureStoreBase):
    """A feature store over rows partitioned across owners: ranks, or servers.

    A gather asks one question for all types and columns. It is collective if owners are ranks, and each rank
    may request any rows. Ids are sent ascending and unique, as differences. Rows are sent in their stored
    dtype and widened on arrival, or rounded if `wire` says so; local rows are then rounded too. A row is
    copied twice: into the outgoing message, and from the received message into the batch. Threads may share
    the store if all ranks make the same number of gathers, as lanes do.
    """

    pieces: Mapping[Type, ColumnPieces]  # the rows of this process
    column_specs: Specs
    offsets: Mapping[Type, Sequence[int]]  # first id of each partition, and the end of the last
    owners: Owners
    kept: RowCache | None = None  # planned cache of remote rows; None: no plan
    wire: Wire = Wire.STORED
    recent: RecentRows | None = None  # cache of recently used remote rows
    _bounds: Mapping[Type, Sequence[int]] = field(init=False, repr=False)  # ids from bound q: owner q
    _spans: Mapping[Type, Sequence[tuple[int, int]]] = field(init=False, repr=False)  # ids of each owner

    def __post_init__(self) -> None:
        owners = range(self.owners.count)
        bounds = {t: self.owners.bounds(of_type) for t, of_type in self.offsets.items()}
        spans = {t: [self.owners.span(of_type, q) for q in owners] for t, of_type in self.offsets.items()}
        object.__setattr__(self, "_bounds", bounds)
        object.__setattr__(self, "_spans", spans)

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        return self.column_specs

    @property
    def is_collective(self) -> bool:
        """True if a gather is collective."""
        return self.owners.is_collective

    def local_rows(self, type_: Type) -> range:
        """Return the rows of this process."""
        return range(*self._spans[type_][self.owners.own])

    def resident_rows(self, type_: Type) -> range:
        """Return the local rows in memory: none if some of their columns are read from disk."""
        return range(0) if is_on_disk(self.pieces.get(type_, {})) else self.local_rows(type_)

    def cached(self, plan: CachePlan) -> PartitionedFeatures:
        """Return a store that caches the planned rows, remote or on this rank's disk. Collective."""
        schema = Schema(tuple(t for t in self.specs if isinstance(t, str)), (), columns=self.specs)
        own = {t: self.local_rows(t) for t in plan.ids}
        others = {t: ids[(ids < own[t].start) | (ids >= own[t].stop)] for t, ids in plan.ids.items()}
        kept = RowCache.filled(replace(plan, ids=others), replace(self, kept=None), schema)
        pieces = keeping(self.pieces, {t: rows.start for t, rows in own.items()}, plan)
        return replace(self, kept=kept, pieces=pieces)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the requested columns, with one row per id in the order of the ids.

        ValueError names a type, a column or a row that does not exist.
        """
        check_wanted(wanted, self.specs, self.offsets)
        queries = [query for type_, rows in wanted.items() for query in self._queries(type_, rows)]
        needed = {"needed_rows": float(sum(rows.ids.numel() for rows in wanted.values()))}
        self.owners.count_traffic(needed | _counts(queries, self.specs, self.wire))

        def use(of_owners: Sequence[Sequence[Mapping[str, Tensor]]]) -> Gathered:
            found: Gathered = {type_: {} for type_ in wanted}
            for number, each in enumerate(queries):
                received = [of_owner[number] for of_owner in of_owners]
                found[each.type_] |= self._rows(each, wanted[each.type_], received)
            return {t: {name: found[t][name] for name in rows.columns} for t, rows in wanted.items()}

        requests = [
            [each.request(owner, self._spans[each.type_][owner][0]) for each in queries]
            for owner in range(self.owners.count)
        ]
        if self.recent is None:
            return self.owners.ask(self.question, requests, use)
        kept = [[self._recent(owner, each) for each in of_owner] for owner, of_owner in enumerate(requests)]
        missing = [[each.missing for each in of_owner] for of_owner in kept]
        return self.owners.ask(
            self.question, missing, lambda found: use(self._with_recent(kept, missing, found))
        )

    @property
    def question(self) -> RowQuestion:
        """The question of a gather, and the local answers to the same question of others."""
        counts = {t: len(self.local_rows(t)) for t in self.specs}
        return RowQuestion(self.pieces, self.specs, counts, self.wire)

    def _recent(self, owner: int, request: RowRequest) -> Kept:
        assert self.recent is not None
        return self.recent.kept(request, self._spans[request.type_][owner][0])

    def _with_recent(
        self,
        kept: Sequence[Sequence[Kept]],
        missing: Sequence[Sequence[RowRequest]],
        fetched: Sequence[Sequence[Mapping[str, Tensor]]],
    ) -> list[list[Mapping[str, Tensor]]]:
        """Return the requested rows, cached or fetched now; cache the fetched rows."""
        assert self.recent is not None
        for owner, (requests, of_owner) in enumerate(zip(missing, fetched, strict=True)):
            for request, rows in zip(requests, of_owner, strict=True):
                self.recent.keep(request, self._spans[request.type_][owner][0], rows)
        by_owner = zip(kept, fetched, strict=True)
        return [[each.joined(rows) for each, rows in zip(*of_owner, strict=True)] for of_owner in by_owner]

    def _queries(self, type_: Type, rows: Rows) -> list[RowQuery]:
        """Return one query per group of columns that are requested for the same number of ids."""
        span, bounds = self._spans[type_][self.owners.own], self._bounds[type_]
        found = []
        for count, columns in columns_by_count(rows):
            ids, slots, kept = rows.ids[:count], None, 0
            if self.kept is not None and isinstance(type_, str) and self.kept.covers(type_, columns):
                slots = self.kept.find(type_, ids)
                kept = self.kept.rows.columns[type_][columns[0]].shape[0]
            found.append(RowQuery.of(type_, columns, RemoteRows.of(ids, span, slots, kept), bounds))
        return found

    def _rows(
        self, asked: RowQuery, rows: Rows, received: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the rows of one query: from local pieces, the cache, and the answers of other ranks."""
        type_, specs, found = asked.type_, self.specs[asked.type_], {}
        plain: dict[str, list[Piece]] = {}
        for name in asked.columns:
            elsewhere = [of_rank[name] for of_rank in received]
            if self.kept is not None and asked.rows.kept:
                elsewhere.insert(0, self.kept.rows.columns[type_][name])
            if is_rounded(specs[name], self.wire):
                found[name] = self._rounded_rows(asked, name, elsewhere)
            else:
                plain[name] = [*self.pieces[type_][name], *elsewhere]
        wanted = Rows(asked.rows.places, tuple(plain), as_float32=rows.as_float32)
        return found | read_rows(plain, specs, type_, wanted)

    def _rounded_rows(self, asked: RowQuery, name: str, elsewhere: Sequence[Tensor]) -> Tensor:
        """Return rows of a column that messages round; local rows are rounded too."""
        type_, specs, places = asked.type_, self.specs[asked.type_], asked.rows.places
        here = (places < asked.rows.held).nonzero().view(-1)
        own = read_rows(self.pieces[type_], specs, type_, Rows(places[here], (name,)))[name]
        places = places + (here.numel() - asked.rows.held)
        places[here] = torch.arange(here.numel())
        pieces = {name: [rounded(own, specs[name], self.wire), *elsewhere]}
        return read_rows(pieces, specs, type_, Rows(places, (name,)))[name]


def _counts(queries: Sequence[RowQuery], specs: Specs, wire: Wire) -> dict[str, float]:
    """Return the counts of remote, cached and requested rows, and the requested bytes.

    Columns that are requested for fewer ids count separately.
    """
    names = ("remote_rows", "host_cache_rows", "requested_rows", "requested_bytes")
    counts = dict.fromkeys(names, 0.0)
    for each in queries:
        row_bytes = sum(
            field_.row_bytes for name in each.columns for field_ in wire_fields(specs[each.type_][name], wire)
        )
        counts["remote_rows"] += each.rows.num_remote
        counts["host_cache_rows"] += each.rows.num_kept
        counts["requested_rows"] += each.rows.asked.numel()
        counts["requested_bytes"] += each.rows.asked.numel() * row_bytes
    return counts


def columns_by_count(rows: Rows) -> list[tuple[int, tuple[str, ...]]]:
    """Return the requested columns by the number of ids that they are requested for."""
    by_count: dict[int, list[str]] = {}
    for name in rows.columns:
        count = min(rows.limits.get(name, rows.ids.numel()), rows.ids.numel())
        by_count.setdefault(count, []).append(name)
    return [(count, tuple(names)) for count, names in by_count.items()]


def check_wanted(wanted: Wanted, specs: Specs, offsets: Mapping[Type, Sequence[int]]) -> None:
    """Raise ValueError for a type, a column or a row that does not exist; `offsets` are as in the store."""
    for type_, rows in wanted.items():
        if type_ not in specs:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(specs)}")
        _check(type_, rows, specs, offsets[type_])


def _check(type_: Type, rows: Rows, specs: Specs, offsets: Sequence[int]) -> None:
    """Raise ValueError for a column or a row that does not exist."""
    for name in rows.columns:
        if name not in specs[type_]:
            raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(specs[type_])}")
    bounds = offsets[0], offsets[-1]
    position = first_outside(rows.ids, bounds) if rows.columns else -1
    if position >= 0:
        raise ValueError(
            f"column {rows.columns[0]!r} of {type_!r}: row id {int(rows.ids[position])} at position "
            f"{position}: must be in [{bounds[0]}, {bounds[1]})"
        )


@dataclass(frozen=True, eq=False)
class RemoteRows:
    """Rows requested by id. One id range is local, some other rows are cached, the rest is fetched."""

    held: int  # number of local rows
    kept: int  # number of cached rows
    places: Tensor  # int64: position of each requested row in local, then cached, then fetched rows
    asked: Tensor  # int64: the ids to fetch, ascending, without duplicates

    @classmethod
    def of(cls, ids: Tensor, span: tuple[int, int], slots: Tensor | None = None, kept: int = 0) -> RemoteRows:
        """Split requested ids, where the ids in `span` (first, end) are local.

        `slots` gives the cache slot of each id, or -1 if it is not cached; None: `kept` is 0.
        """
        places, asked = remote_rows(ids, *span, slots=slots, kept=kept)
        return cls(span[1] - span[0], kept, places, asked)

    @property
    def num_remote(self) -> int:
        """The number of requested rows that are remote."""
        return int((self.places >= self.held).sum())

    @property
    def num_kept(self) -> int:
        """The number of requested rows that are cached."""
        return self.num_remote - int((self.places >= self.held + self.kept).sum()) if self.kept else 0


@dataclass(frozen=True)
class RowQuery:
    """Requested rows of some columns of one type, and the rows among them to request from other owners."""

    type_: Type
    columns: tuple[str, ...]
    rows: RemoteRows
    counts: tuple[int, ...]  # number of rows to request from each owner

    @classmethod
    def of(cls, type_: Type, columns: tuple[str, ...], rows: RemoteRows, bounds: Sequence[int]) -> RowQuery:
        """Build a query; owner q is asked for ids in [bounds[q], bounds[q + 1])."""
        counts = torch.searchsorted(rows.asked, torch.tensor(bounds)).diff()
        return cls(type_, columns, rows, tuple(counts.tolist()))

    def request(self, owner: int, first: int) -> RowRequest:
        """Return the request to an owner whose rows begin at id `first`."""
        begin = sum(self.counts[:owner])
        ids = self.rows.asked[begin : begin + self.counts[owner]]
        return RowRequest(self.type_, self.columns, ids - first)


@dataclass(frozen=True, eq=False)
class RowQuestion:
    """The question of a gather (a Question). A query is the requests to one owner."""

    pieces: Mapping[Type, ColumnPieces]  # the rows of this process: one range of ids per type
    specs: Specs
    counts: Mapping[Type, int]  # number of rows of each type
    wire: Wire
    asking: ClassVar[Message] = Message("asking for rows", "id")
    answering: ClassVar[Message] = Message("getting rows", "row")

    @property
    def most_bytes(self) -> int:
        """Bytes of a request for each row of each column."""
        return largest(self.specs, self.counts)

    def is_empty(self, query: Sequence[RowRequest]) -> bool:
        """Return True for an empty list of ids."""
        return not any(each.ids.numel() for each in query)

    def request(self, owner: int, query: Sequence[RowRequest]) -> Tensor:
        """Encode requests, uint8 (n)."""
        return written(query, self.specs)

    def asked(self, message: Tensor) -> list[RowRequest]:
        """Decode requests; ValueError names the part that is invalid."""
        return read(message, self.specs, self.counts)

    def worked(self, queries: Sequence[Sequence[RowRequest]]) -> Sequence[Sequence[RowRequest]]:
        """Return the requests: rows are read directly into outgoing messages."""
        return queries

    def size_of(self, work: Sequence[RowRequest]) -> int:
        """Return the bytes of the rows."""
        return answer_bytes(work, self.specs, self.wire)

    def size(self, query: Sequence[RowRequest]) -> int:
        """Return the bytes of the rows."""
        return answer_bytes(query, self.specs, self.wire)

    def write(self, work: Sequence[RowRequest], message: Tensor) -> None:
        """Write the requested rows into a message."""
        writer = Writer(message)
        for request in work:
            self._write(writer, request)

    def read(self, message: Tensor, query: Sequence[RowRequest]) -> list[dict[str, Tensor]]:
        """Decode rows: for each request, the rows of each column."""
        return rows_of_answer(message, query, self.specs, self.wire)

    def here(self, query: Sequence[RowRequest], work: object) -> list[dict[str, Tensor]]:
        """Return no rows: local rows are read from the pieces."""
        nothing = [RowRequest(each.type_, each.columns, each.ids[:0]) for each in query]
        return rows_of_answer(NO_BYTES, nothing, self.specs, self.wire)

    def _write(self, writer: Writer, request: RowRequest) -> None:
        pieces, specs, plain = self.pieces[request.type_], self.specs[request.type_], {}
        for name in request.columns:
            places = [
                writer.room(field_.dtype, request.ids.numel(), field_.shape)
                for field_ in wire_fields(specs[name], self.wire)
            ]
            if not is_rounded(specs[name], self.wire):
                plain[name] = places[0]
                continue
            rows = read_rows(pieces, specs, request.type_, Rows(request.ids, (name,)))[name]
            for place, of_field in zip(places, sent_rows(rows, specs[name], self.wire), strict=True):
                place.copy_(of_field)
        read_into(pieces, request.ids, plain)


WAYS = 8  # places for a row
MOST_TABLES = 64  # limited because clients choose columns
_BOOKS = 16  # bytes of an id and its last use

Columns = Mapping[str, Tensor]  # by column: (n, ...), as stored


@dataclass(frozen=True, eq=False)
class Kept:
    """The cached rows of a request, and the request for the others."""

    found: Tensor  # bool (n): which rows of the request were cached
    rows: Columns  # (found, ...)
    missing: RowRequest

    def joined(self, fetched: Columns) -> dict[str, Tensor]:
        """Return all rows of the request, in the order of its ids; `fetched` are the missing rows."""
        if not self.rows:
            return dict(fetched)
        joined = {}
        for name, rows in fetched.items():
            out = rows.new_empty((self.found.numel(), *rows.shape[1:]))
            out[self.found], out[~self.found] = self.rows[name], rows
            joined[name] = out
        return joined


class _Table:
    """A set-associative LRU cache of rows of some columns of one type, with `WAYS` places per id."""

    def __init__(self, specs: Mapping[str, ColumnSpec], sets: int) -> None:
        self.ids = torch.full((sets, WAYS), -1, dtype=torch.int64)
        self._used = torch.zeros((sets, WAYS), dtype=torch.int64)
        self._rows = {
            name: torch.empty((sets * WAYS, *spec.shape), dtype=stored_dtype(spec))
            for name, spec in specs.items()
        }

    def kept(self, ids: Tensor, now: int) -> tuple[Tensor, Columns]:
        """Return which ids are cached, bool (n), and their rows."""
        sets = ids % len(self.ids)
        same = self.ids[sets] == ids[:, None]
        found = same.any(1)
        places = (sets * WAYS + same.int().argmax(1))[found]
        self._used.view(-1)[places] = now
        return found, {name: rows[places] for name, rows in self._rows.items()}

    def keep(self, ids: Tensor, rows: Columns, now: int) -> None:
        """Cache rows of unique ids. If several ids map to one place, one of them is cached."""
        sets = ids % len(self.ids)
        places = sets * WAYS + self._used[sets].argmin(1)
        tags = self.ids.view(-1)
        tags[places] = ids
        won = tags[places] == ids
        self._used.view(-1)[places] = now
        for name, kept in self._rows.items():
            kept[places[won]] = rows[name][won]


@dataclass(eq=False)
class RecentRows:
    """A cache of remote rows in at most `most_bytes`, by type and columns. Threads may share it.

    Tables share the memory in proportion to the sizes of all their rows. A table for new columns takes its
    share from the others, which are then emptied. Rows are cached as stored.
    """

    most_bytes: int
    specs: Specs
    counts: Mapping[Type, int]  # rows of all owners by type
    _tables: dict[tuple[Type, tuple[str, ...]], _Table | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _now: int = 0
    _hits: int = 0
    _misses: int = 0

    def kept(self, request: RowRequest, first: int) -> Kept:
        """Return the cached rows of a request; its ids are relative to `first`."""
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

    def keep(self, request: RowRequest, first: int, rows: Columns) -> None:
        """Cache the rows of an answered request; its ids are relative to `first`."""
        with self._lock:
            table = self._table(request)
            if table is not None and request.ids.numel():
                self._now += 1
                table.keep(request.ids + first, rows, self._now)

    def counters(self) -> Mapping[str, int]:
        """Return the numbers of cache hits and misses, and the cached bytes."""
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
        """Rebuild all tables, each with its share of the memory."""
        full = {key: self._row_bytes(*key) * self._sets(key[0]) * WAYS for key in self._tables}
        share = min(1.0, self.most_bytes / max(1, sum(full.values())))
        for key in self._tables:
            self._tables[key] = None  # freed before new ones are allocated
        for (type_, columns), size in full.items():
            sets = int(share * size) // (self._row_bytes(type_, columns) * WAYS)
            specs = {name: self.specs[type_][name] for name in columns}
            self._tables[type_, columns] = _Table(specs, sets) if sets else None

    def _sets(self, type_: Type) -> int:
        return -(-self.counts[type_] // WAYS)

    def _row_bytes(self, type_: Type, columns: Sequence[str]) -> int:
        specs = (self.specs[type_][name] for name in columns)
        return _BOOKS + sum(math.prod(spec.shape) * stored_dtype(spec).itemsize for spec in specs)
