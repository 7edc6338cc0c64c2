"""The rows that a rank holds, sent to those who ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from khop.distributed.peers import Message, Peers
from khop.distributed.row_request import Request, Specs, Type, largest, read
from khop.distributed.row_wire import Wire, as_bytes, sent_rows
from khop.features.store import FeatureStore, Rows

ASKING = Message("asking for rows", "id")


@dataclass(frozen=True, eq=False)
class HeldRows:
    """A feature store of the rows held here, and which those are."""

    store: FeatureStore  # by the ids of all
    specs: Specs
    spans: Mapping[Type, tuple[int, int]]  # the first id that is held, and the one after the last
    wire: Wire

    def asked(self, peers: Peers, messages: Sequence[Tensor]) -> list[Tensor]:
        """What every rank asks for, by what this rank asks them. Two collectives."""
        return peers.exchange(messages, ASKING, largest(self.specs, self._counts()))

    def answers(self, peers: Peers, asked: Sequence[Tensor]) -> list[Tensor]:
        """The rows that every rank asks for; a request that cannot be names who sent it.

        Equal requests of several ranks are read in one go.
        """
        alike: dict[tuple[Type, tuple[str, ...]], list[tuple[int, Tensor]]] = {}
        pieces: list[dict[tuple[Type, tuple[str, ...]], list[Tensor]]] = [{} for _ in asked]
        for rank, message in enumerate(asked):
            for request in self._read(peers, rank, message):
                key = request.type_, request.columns
                pieces[rank][key] = []  # answered in the order of asking
                alike.setdefault(key, []).append((rank, request.ids))
        for key, of_ranks in alike.items():
            for plane in self._planes(*key, [ids for _, ids in of_ranks]):
                for (rank, _), of_rank in zip(of_ranks, plane, strict=True):
                    pieces[rank][key] += as_bytes(of_rank)
        empty = torch.empty(0, dtype=torch.uint8)
        return [torch.cat([empty, *chain.from_iterable(of_rank.values())]) for of_rank in pieces]

    def _planes(self, type_: Type, columns: tuple[str, ...], ids: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Every tensor to be sent for these rows, column after column, split as the ids are."""
        wanted = Rows(torch.cat(list(ids)) + self.spans[type_][0], columns)
        rows = self.store.gather({type_: wanted})[type_]
        counts = [of_rank.numel() for of_rank in ids]
        specs = self.specs[type_]
        return [
            plane.split_with_sizes(counts)
            for name in columns
            for plane in sent_rows(rows[name], specs[name], self.wire)
        ]

    def _read(self, peers: Peers, rank: int, message: Tensor) -> list[Request]:
        try:
            return read(message, self.specs, self._counts())
        except ValueError as error:
            raise peers.wrong(rank, ASKING, str(error)) from error

    def _counts(self) -> dict[Type, int]:
        return {type_: end - first for type_, (first, end) in self.spans.items()}
