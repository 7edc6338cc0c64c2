"""Feature columns partitioned across ranks, gathered as if every row were local.

Assignment of partitions to ranks, and the rank that answers requests for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.distributed.exchange.codec import Writer
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message, Messages, Peers, naming
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
    wire_fields,
    written,
)
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import CachePlan, FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.features.table import ColumnPieces, Piece, read_into, read_rows
from khop.graph.partitions.local_partitions import is_on_disk, keeping
from khop.kernels.owners import first_outside, remote_rows
from khop.schema import Schema, Specs, Type


@dataclass(frozen=True)
class PartitionOwners:
    """Contiguous partitions assigned to ranks in order: several per rank, or several ranks per partition.

    The assignment is the same on every rank. Only the choice of the rank to ask depends on `rank`: itself for
    a partition that it stores, otherwise one of the ranks that store it. Different ranks ask different
    owners, so no owner answers all requests.
    """

    parts: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.parts < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"{self.parts} parts held by rank {self.rank} of {self.world_size}: there must be at least "
                "one part, and ranks count from 0"
            )

    def parts_of(self, rank: int) -> range:
        """Return the partitions that a rank stores: at least one."""
        if self.world_size >= self.parts:
            part = rank * self.parts // self.world_size
            return range(part, part + 1)
        return range(-(-rank * self.parts // self.world_size), -(-(rank + 1) * self.parts // self.world_size))

    def ranks_of(self, part: int) -> range:
        """Return the ranks that store a partition: at least one."""
        if self.world_size < self.parts:
            rank = part * self.world_size // self.parts
            return range(rank, rank + 1)
        return range(-(-part * self.world_size // self.parts), -(-(part + 1) * self.world_size // self.parts))

    @property
    def is_first(self) -> bool:
        """True if this rank is the first of the ranks with its partitions, and so sends for all of them."""
        return self.ranks_of(self.parts_of(self.rank).start).start == self.rank

    def asked(self, part: int) -> int:
        """Return the rank that answers this rank's requests for a partition."""
        ranks = self.ranks_of(part)
        return self.rank if self.rank in ranks else ranks[self.rank % len(ranks)]

    def held(self, offsets: Sequence[int], rank: int) -> tuple[int, int]:
        """Return the first id that a rank stores, and the id after its last.

        `offsets` hold the first id of each partition, and the end of the last.
        """
        parts = self.parts_of(rank)
        return offsets[parts.start], offsets[parts.stop]

    def bounds(self, offsets: Sequence[int]) -> list[int]:
        """Return (ranks + 1) ids: this rank asks rank q for the ids from bound q up to bound q + 1."""
        ends = [0] * self.world_size
        for part in range(self.parts):
            ends[self.asked(part)] = offsets[part + 1]
        for rank in range(1, self.world_size):  # an empty range for each rank that this one does not ask
            ends[rank] = max(ends[rank], ends[rank - 1])
        return [offsets[0], *ends]


ASKING = Message("asking for rows", "id")
ANSWERING = Message("getting rows", "row")


@dataclass(frozen=True, eq=False)
class PartitionedFeatures(FeatureStoreBase):
    """A feature store over rows partitioned across ranks.

    A gather is collective; each rank may request any rows. It makes three collectives: sizes of requests, row
    ids, and the rows of all types and columns. Ids are sent ascending and unique, as differences. Rows are
    sent in their stored dtype and widened on arrival, or rounded if `wire` says so; local rows are then
    rounded too. A row is copied twice: into the outgoing message, and from the received message into the
    batch. Threads may share the store if all ranks make equally many gathers, as lanes do.
    """

    pieces: Mapping[Type, ColumnPieces]  # the rows that this rank stores
    column_specs: Specs
    offsets: Mapping[Type, Sequence[int]]  # first id of each partition, and the end of the last
    holders: PartitionOwners
    lanes: Lanes
    kept: RowCache | None = None  # rows of other ranks; None: no rows are cached
    wire: Wire = Wire.STORED
    _bounds: Mapping[Type, Sequence[int]] = field(init=False, repr=False)  # rank q is asked from bound q
    _spans: Mapping[Type, Sequence[tuple[int, int]]] = field(init=False, repr=False)  # ids of each rank

    def __post_init__(self) -> None:
        ranks = range(self.holders.world_size)
        bounds = {t: self.holders.bounds(of_type) for t, of_type in self.offsets.items()}
        spans = {
            t: [self.holders.held(of_type, rank) for rank in ranks] for t, of_type in self.offsets.items()
        }
        object.__setattr__(self, "_bounds", bounds)
        object.__setattr__(self, "_spans", spans)

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        return self.column_specs

    @property
    def is_collective(self) -> bool:
        """True: a gather asks other ranks."""
        return True

    def local_rows(self, type_: Type) -> range:
        """Return the rows that this rank stores."""
        return range(*self._spans[type_][self.holders.rank])

    def resident_rows(self, type_: Type) -> range:
        """Return the rows that this rank has in memory: none if it reads some of their columns from disk."""
        return range(0) if is_on_disk(self.pieces.get(type_, {})) else self.local_rows(type_)

    def cached(self, plan: CachePlan) -> PartitionedFeatures:
        """Return a store that keeps the rows of a plan, of other ranks or on this rank's disk. Collective."""
        schema = Schema(tuple(t for t in self.specs if isinstance(t, str)), (), columns=self.specs)
        own = {t: self.local_rows(t) for t in plan.ids}
        others = {t: ids[(ids < own[t].start) | (ids >= own[t].stop)] for t, ids in plan.ids.items()}
        kept = RowCache.filled(replace(plan, ids=others), replace(self, kept=None), schema)
        pieces = keeping(self.pieces, {t: rows.start for t, rows in own.items()}, plan)
        return replace(self, kept=kept, pieces=pieces)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the requested columns, one row per id in the order of the ids.

        ValueError names a type, a column or a row that does not exist.
        """
        check_wanted(wanted, self.specs, self.offsets)
        peers = self.lanes.peers
        queries = [query for type_, rows in wanted.items() for query in self._queries(type_, rows)]
        found: Gathered = {type_: {} for type_ in wanted}
        with peers.turn:  # held until the rows are copied out of the received messages
            peers.counts["needed_rows"] += sum(rows.ids.numel() for rows in wanted.values())
            _count_rows(peers.counts, queries, self.specs, self.wire)
            received = self._received(peers, queries)
            for each, of_ranks in zip(queries, received, strict=True):
                found[each.type_] |= self._rows(each, wanted[each.type_], of_ranks)
        return {type_: {name: found[type_][name] for name in rows.columns} for type_, rows in wanted.items()}

    def _queries(self, type_: Type, rows: Rows) -> list[RowQuery]:
        """Return one query per group of columns that are requested for the same number of ids."""
        span, bounds = self._spans[type_][self.holders.rank], self._bounds[type_]
        found = []
        for count, columns in columns_by_count(rows):
            ids, slots, kept = rows.ids[:count], None, 0
            if self.kept is not None and isinstance(type_, str) and self.kept.covers(type_, columns):
                slots = self.kept.find(type_, ids)
                kept = self.kept.rows.columns[type_][columns[0]].shape[0]
            found.append(RowQuery.of(type_, columns, RemoteRows.of(ids, span, slots, kept), bounds))
        return found

    def _received(self, peers: Peers, queries: Sequence[RowQuery]) -> list[list[Mapping[str, Tensor]]]:
        """Return the answers of every rank to each query, and serve their queries. Collective."""
        counts = {t: end - first for t in self.specs for first, end in [self._spans[t][self.holders.rank]]}
        held = RowServer(self.pieces, self.specs, counts, self.wire)
        requests = [
            [each.request(rank, self._spans[each.type_][rank][0]) for each in queries]
            for rank in range(self.holders.world_size)
        ]
        asked = held.asked(peers, [written(of_rank, self.specs) for of_rank in requests])
        sizes = [answer_bytes(of_rank, self.specs, self.wire) for of_rank in requests]
        answers = peers.reply(held.answers(peers, asked), sizes, ANSWERING)
        of_ranks = [
            rows_of_answer(answer, of_rank, self.specs, self.wire)
            for answer, of_rank in zip(answers, requests, strict=True)
        ]
        return [[of_rank[number] for of_rank in of_ranks] for number in range(len(queries))]

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
        """Return rows of a column that is rounded when sent; local rows are rounded too."""
        type_, specs, places = asked.type_, self.specs[asked.type_], asked.rows.places
        here = (places < asked.rows.held).nonzero().view(-1)
        own = read_rows(self.pieces[type_], specs, type_, Rows(places[here], (name,)))[name]
        places = places + (here.numel() - asked.rows.held)
        places[here] = torch.arange(here.numel())
        pieces = {name: [rounded(own, specs[name], self.wire), *elsewhere]}
        return read_rows(pieces, specs, type_, Rows(places, (name,)))[name]


def _count_rows(counts: dict[str, float], queries: Sequence[RowQuery], specs: Specs, wire: Wire) -> None:
    """Count rows that are remote, cached and asked for, and bytes asked for.

    Columns that are requested for fewer ids count separately.
    """
    for name in ("remote_rows", "host_cache_rows", "requested_rows", "requested_bytes"):
        counts[name] += 0
    for each in queries:
        row_bytes = sum(
            field_.row_bytes for name in each.columns for field_ in wire_fields(specs[each.type_][name], wire)
        )
        counts["remote_rows"] += each.rows.num_remote
        counts["host_cache_rows"] += each.rows.num_kept
        counts["requested_rows"] += each.rows.asked.numel()
        counts["requested_bytes"] += each.rows.asked.numel() * row_bytes


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
    """Rows requested by id. One id range is held here, some other rows are cached, the rest is fetched."""

    held: int  # number of held rows
    kept: int  # number of cached rows
    places: Tensor  # int64: position of each requested row in the held, then cached, then fetched rows
    asked: Tensor  # int64: the ids to fetch, ascending, without duplicates

    @classmethod
    def of(cls, ids: Tensor, span: tuple[int, int], slots: Tensor | None = None, kept: int = 0) -> RemoteRows:
        """Split requested ids, where the ids in `span` (first, end) are held.

        `slots` gives the cache slot of each id, or -1 if it is not cached; None: `kept` is 0.
        """
        places, asked = remote_rows(ids, *span, slots=slots, kept=kept)
        return cls(span[1] - span[0], kept, places, asked)

    @property
    def num_remote(self) -> int:
        """The number of requested rows that are not held here."""
        return int((self.places >= self.held).sum())

    @property
    def num_kept(self) -> int:
        """The number of requested rows that are cached here."""
        return self.num_remote - int((self.places >= self.held + self.kept).sum()) if self.kept else 0


@dataclass(frozen=True)
class RowQuery:
    """Requested rows of some columns of one type, and the rows among them to request from other ranks."""

    type_: Type
    columns: tuple[str, ...]
    rows: RemoteRows
    counts: tuple[int, ...]  # number of rows to request from each rank

    @classmethod
    def of(cls, type_: Type, columns: tuple[str, ...], rows: RemoteRows, bounds: Sequence[int]) -> RowQuery:
        """Build a query; rank q is asked for the ids from bound q up to bound q + 1."""
        counts = torch.searchsorted(rows.asked, torch.tensor(bounds)).diff()
        return cls(type_, columns, rows, tuple(counts.tolist()))

    def request(self, rank: int, first: int) -> RowRequest:
        """Return the request to a rank with rows that begin at id `first`."""
        begin = sum(self.counts[:rank])
        return RowRequest(
            self.type_, self.columns, self.rows.asked[begin : begin + self.counts[rank]] - first
        )


@dataclass(frozen=True, eq=False)
class RowServer:
    """The rows stored on this rank: one range of ids per type."""

    pieces: Mapping[Type, ColumnPieces]
    specs: Specs
    counts: Mapping[Type, int]  # number of rows of each type
    wire: Wire

    def asked(self, peers: Peers, messages: Sequence[Tensor]) -> list[list[RowRequest]]:
        """Send this rank's requests and return the requests of every rank. Two collectives.

        ValueError about an invalid request names its sender.
        """
        found: list[list[RowRequest]] = []
        received = peers.exchange(messages, ASKING, largest(self.specs, self.counts))
        for rank, message in enumerate(received):
            with naming(peers, rank, ASKING):
                found.append(read(message, self.specs, self.counts))
        return found

    def answers(self, peers: Peers, asked: Sequence[Sequence[RowRequest]]) -> Messages:
        """Return the rows that every rank requests, read directly into outgoing messages."""
        messages = peers.outgoing([answer_bytes(requests, self.specs, self.wire) for requests in asked])
        for message, requests in zip(messages.payloads, asked, strict=True):
            self.write(requests, message)
        return messages

    def answer(self, message: Tensor) -> Tensor:
        """Return the rows that a message requests, uint8 (n); ValueError if the message is invalid."""
        requests = read(message, self.specs, self.counts)
        room = torch.empty(answer_bytes(requests, self.specs, self.wire), dtype=torch.uint8)
        self.write(requests, room)
        return room

    def write(self, requests: Sequence[RowRequest], message: Tensor) -> None:
        """Write the requested rows into a message of `answer_bytes`."""
        writer = Writer(message)
        for request in requests:
            self._write(writer, request)

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
