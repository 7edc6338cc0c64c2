"""Rows of a rank in memory of its device, and the rows of other ranks that a batch needs, without a wait.

A batch takes two collectives over the devices: ids, and rows. All messages have the same size, so no sizes
are exchanged, and no host reads a tensor before the batch is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from khop.distributed.partitioned_features import PartitionedFeatures
from khop.exchange.codec import narrowest
from khop.exchange.fixed_wire import FixedWire
from khop.exchange.peers import MARK_NUMBERS, Message, Peers
from khop.exchange.row_wire import Wire, is_rounded, received_rows, rounded, sent_rows
from khop.features.store import Rows
from khop.features.table import column_of, scales_of
from khop.kernels.gather import Column, gather_columns, widened
from khop.kernels.peer_slots import PeerSlots, peer_slots
from khop.schema import NodeType, Specs

ASKING = Message("asking for rows on devices", "id")
ANSWERING = Message("getting rows on devices", "row")


@dataclass(frozen=True)
class Asked:
    """Rows of one group of a batch: ids on the device, duplicates included."""

    ids: Tensor  # int64 (n)
    as_float32: frozenset[str] = frozenset()  # columns to widen


@dataclass(frozen=True, eq=False)
class RankRows:
    """Columns of nodes of which this rank's rows are in memory that kernels of its device read."""

    columns: Mapping[NodeType, Mapping[str, Tensor]]  # (rows of this rank, *shape), at any pitch
    features: PartitionedFeatures  # the same and all other columns, on the host
    device: torch.device
    pinned: frozenset[str] = frozenset()  # the columns that are in memory of the host

    @property
    def rank(self) -> int:
        """This rank."""
        return self.features.holders.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.features.holders.world_size

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column."""
        return self.features.specs

    @property
    def wire(self) -> Wire:
        """The format in which rows are sent."""
        return self.features.wire

    @cached_property
    def bounds(self) -> dict[NodeType, Tensor]:
        """On the device by type, int64 (ranks + 1): rank q is asked for the ids from bound q on."""
        features = self.features
        return {
            t: torch.tensor(features.holders.bounds(features.offsets[t]), device=self.device)
            for t in self.columns
        }

    @cached_property
    def firsts(self) -> dict[NodeType, Tensor]:
        """On the device by type, int64 (ranks): the first id that each rank stores."""
        return {
            t: torch.tensor([first for first, _ in self.spans(t)], device=self.device) for t in self.columns
        }

    @cached_property
    def scales(self) -> dict[tuple[NodeType, str], Tensor | None]:
        """The scales of quantized columns, on the device."""
        return {
            (t, name): scales_of(self.specs[t][name], self.device)
            for t, of_type in self.columns.items()
            for name in of_type
        }

    def spans(self, node_type: NodeType) -> list[tuple[int, int]]:
        """Return the ids that each rank stores: the first, and the one after the last."""
        features = self.features
        return [features.holders.held(features.offsets[node_type], rank) for rank in range(self.world_size)]

    def id_dtype(self, node_type: NodeType) -> torch.dtype:
        """Return the dtype of ids in messages, the same on all ranks."""
        return narrowest(max(end - first for first, end in self.spans(node_type)))

    def slots(self, node_type: NodeType, ids: Tensor, capacity: int) -> PeerSlots:
        """Return the places of rows by id in messages with `capacity` ids for each rank."""
        return peer_slots(ids, self.bounds[node_type], self.firsts[node_type], self.rank, capacity)

    def stored(self, node_type: NodeType, name: str, rows: Tensor) -> Tensor:
        """Gather rows of this rank by position, as stored; int64 (n), in range if this rank has rows."""
        table = self.columns[node_type][name]
        if not table.shape[0]:
            return rows.new_zeros((rows.numel(), *table.shape[1:]), dtype=table.dtype)
        what = f"column {name!r} of {node_type!r}: row"
        return gather_columns([Column(table, what, is_pinned=name in self.pinned)], rows)[0]


@dataclass(frozen=True, eq=False)
class Swapped:
    """The rows of a batch, issued to the current stream, and the status that tells if they are valid."""

    rows: list[dict[str, Tensor]]  # by group, as a gather gives them
    status: Tensor  # int64 (ranks, n) on the device; see `Status`


@dataclass(frozen=True, eq=False)
class RowSwap:
    """The exchange of one batch, in a format that all ranks share."""

    rows: RankRows
    format: FixedWire

    def issue(self, peers: Peers, marks: tuple[list[int], list[int]], asked: Sequence[Asked]) -> Swapped:
        """Exchange the rows of a batch in the current stream. Collective; nothing waits for the device.

        `asked` has the ids of each group of the format. `marks` are for ids and rows.
        """
        rows, form = self.rows, self.format
        slots = [
            rows.slots(group.type_, of.ids, group.capacity)
            for group, of in zip(form.groups, asked, strict=True)
        ]
        given, found = form.requests(rows.device), form.requests(rows.device)
        self._write_requests(given, slots, marks[0])
        peers.swap(found, given, ASKING)
        answers, received = form.answers(rows.device), form.answers(rows.device)
        outside = self._write_answers(answers, found, marks[1])
        peers.swap(received, answers, ANSWERING)
        headers = form.request_header(found), form.answer_header(received), outside[:, None]
        status = torch.cat([*headers, form.request_header(given)], dim=1)
        of_groups = zip(form.rows(received), slots, asked, range(len(slots)), strict=True)
        return Swapped([self._rows(*of_group) for of_group in of_groups], status)

    def _write_requests(self, requests: Tensor, slots: Sequence[PeerSlots], mark: list[int]) -> None:
        header = self.format.request_header(requests)
        self.format.write_mark(header, mark)
        capacities = [group.capacity for group in self.format.groups]
        exceeded = [(of.counts > most).any() for of, most in zip(slots, capacities, strict=True)]
        header[:, MARK_NUMBERS] = torch.stack(exceeded).any()  # all ranks learn of it, not one owner alone
        header[:, MARK_NUMBERS + 1 :] = torch.stack([of.counts for of in slots], dim=1)
        for place, of in zip(self.format.ids(requests), slots, strict=True):
            place.copy_(of.asked)

    def _write_answers(self, answers: Tensor, requests: Tensor, mark: list[int]) -> Tensor:
        """Write the rows that each rank asks for; return int64 (ranks), ids that this rank does not have."""
        self.format.write_mark(self.format.answer_header(answers), mark)
        outside = torch.zeros(self.rows.world_size, dtype=torch.int64, device=answers.device)
        of_groups = zip(self.format.groups, self.format.ids(requests), self.format.rows(answers), strict=True)
        for group, ids, places in of_groups:
            first, end = self.rows.spans(group.type_)[self.rows.rank]
            wide = ids.long()
            clamped = wide.clamp(0, max(0, end - first - 1))
            outside += (wide != clamped).sum(1)
            for name in group.columns:
                spec = self.rows.specs[group.type_][name]
                stored = self.rows.stored(group.type_, name, clamped.flatten())
                for place, sent in zip(places[name], sent_rows(stored, spec, self.rows.wire), strict=True):
                    place.copy_(sent.unflatten(0, place.shape[:2]))
        return outside

    def _rows(
        self, received: Mapping[str, Sequence[Tensor]], slots: PeerSlots, asked: Asked, number: int
    ) -> dict[str, Tensor]:
        """Join rows of this rank and of others, in the order of the ids."""
        group = self.format.groups[number]
        own = slots.places.where(slots.is_own, 0)
        remote = slots.places.where(~slots.is_own, 0)
        at = torch.div(remote, group.capacity, rounding_mode="floor"), remote % group.capacity
        found = {}
        for name in group.columns:
            spec, wire = self.rows.specs[group.type_][name], self.rows.wire
            here = self.rows.stored(group.type_, name, own)
            here = rounded(here, spec, wire) if is_rounded(spec, wire) else here
            there = received_rows([sent[at] for sent in received[name]], spec, wire)
            is_own = slots.is_own.view(-1, *[1] * len(spec.shape))
            wanted = Rows(asked.ids, (name,), as_float32=asked.as_float32)
            scales = self.rows.scales[group.type_, name]
            column = column_of(self.rows.columns[group.type_][name], group.type_, name, wanted, scales)
            found[name] = widened(column, torch.where(is_own, here, there))
        return found


@dataclass(frozen=True)
class Status:
    """The status of an exchange, on the host."""

    overflowed: bool  # on some rank: all ranks repeat the exchange
    requested: tuple[int, ...]  # distinct ids that this rank has asked for, by group

    @classmethod
    def of(cls, peers: Peers, marks: tuple[list[int], list[int]], status: Tensor) -> Status:
        """Check the messages of all ranks; ValueError names the sender of another message or of a bad id."""
        overflowed, numbers = False, status.tolist()
        width = (len(numbers[0]) - MARK_NUMBERS - 1) // 2  # of the header of a request
        for rank, found in enumerate(numbers):
            peers.check_mark(rank, ASKING, marks[0], found[:MARK_NUMBERS])
            peers.check_mark(rank, ANSWERING, marks[1], found[width : width + MARK_NUMBERS])
            if found[width + MARK_NUMBERS]:
                raise peers.wrong(rank, ASKING, "an id of a row that this rank does not store")
            overflowed |= found[MARK_NUMBERS] != 0
        own = [found[width + 2 * MARK_NUMBERS + 2 :] for found in numbers]
        return cls(overflowed, tuple(map(sum, zip(*own, strict=True))))
