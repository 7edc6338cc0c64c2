"""Rows requested from the ranks that store them, and rows sent to the ranks that request them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.exchange.codec import Writer
from khop.exchange.peers import Message, Messages, Peers, naming
from khop.exchange.row_wire import (
    RowRequest,
    Specs,
    Type,
    Wire,
    answer_bytes,
    is_rounded,
    largest,
    planes,
    read,
    sent_rows,
)
from khop.features.store import Rows
from khop.features.table import ColumnPieces, read_into, read_rows
from khop.kernels.owners import remote_rows

ASKING = Message("asking for rows", "id")


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
            writer = Writer(message)
            for request in requests:
                self._write(writer, request)
        return messages

    def _write(self, writer: Writer, request: RowRequest) -> None:
        """Write the rows of one request."""
        pieces, specs, plain = self.pieces[request.type_], self.specs[request.type_], {}
        for name in request.columns:
            places = [
                writer.room(plane.dtype, request.ids.numel(), plane.shape)
                for plane in planes(specs[name], self.wire)
            ]
            if not is_rounded(specs[name], self.wire):
                plain[name] = places[0]
                continue
            rows = read_rows(pieces, specs, request.type_, Rows(request.ids, (name,)))[name]
            for place, of_plane in zip(places, sent_rows(rows, specs[name], self.wire), strict=True):
                place.copy_(of_plane)
        read_into(pieces, request.ids, plain)
