"""Serving of rows: the rows that this rank stores, sent to the ranks that request them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from khop.distributed.row_request import RowRequest, Specs, Type, largest, read
from khop.exchange.messages import Messages
from khop.exchange.peers import Message, Peers
from khop.exchange.row_wire import Wire, is_rounded, of_bytes, planes, received_rows, sent_rows
from khop.features.column_pieces import ColumnPieces, read_into, read_rows
from khop.features.store import Rows

ASKING = Message("asking for rows", "id")


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
        received = peers.exchange(messages, ASKING, largest(self.specs, self.counts))
        return [self._read(peers, rank, message) for rank, message in enumerate(received)]

    def answers(self, peers: Peers, asked: Sequence[Sequence[RowRequest]]) -> Messages:
        """Return the rows that every rank requests, read directly into outgoing messages."""
        messages = peers.outgoing([answer_bytes(requests, self.specs, self.wire) for requests in asked])
        for room, requests in zip(messages.payloads, asked, strict=True):
            for request in requests:
                room = self._write(room, request)
        return messages

    def _write(self, room: Tensor, request: RowRequest) -> Tensor:
        """Write the rows of one request; return the rest of the message."""
        count, plain = request.ids.numel(), {}
        pieces, specs = self.pieces[request.type_], self.specs[request.type_]
        for name in request.columns:
            places = []
            for plane in planes(specs[name], self.wire):
                places.append(of_bytes(room, plane, count))
                room[count * plane.row_bytes : plane.size(count)] = 0
                room = room[plane.size(count) :]
            if not is_rounded(specs[name], self.wire):
                plain[name] = places[0]
                continue
            rows = read_rows(pieces, specs, request.type_, Rows(request.ids, (name,)))[name]
            for place, of_plane in zip(places, sent_rows(rows, specs[name], self.wire), strict=True):
                place.copy_(of_plane)
        read_into(pieces, request.ids, plain)
        return room

    def _read(self, peers: Peers, rank: int, message: Tensor) -> list[RowRequest]:
        try:
            return read(message, self.specs, self.counts)
        except ValueError as error:
            raise peers.wrong(rank, ASKING, str(error)) from error


def answer_bytes(requests: Sequence[RowRequest], specs: Specs, wire: Wire) -> int:
    """Return the size of the answer to these requests, in bytes."""
    return sum(
        plane.size(request.ids.numel())
        for request in requests
        for name in request.columns
        for plane in planes(specs[request.type_][name], wire)
    )


def rows_of_answer(
    answer: Tensor, requests: Sequence[RowRequest], specs: Specs, wire: Wire
) -> list[dict[str, Tensor]]:
    """Decode an answer: for each request, the rows of each column."""
    found: list[dict[str, Tensor]] = []
    for request in requests:
        rows, count = {}, request.ids.numel()
        for name in request.columns:
            spec, sent = specs[request.type_][name], []
            for plane in planes(spec, wire):
                sent.append(of_bytes(answer, plane, count))
                answer = answer[plane.size(count) :]
            rows[name] = received_rows(sent, spec, wire)
        found.append(rows)
    return found
