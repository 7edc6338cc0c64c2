"""Columns whose rows lie with several ranks, gathered as if they all lay here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.distributed.held_rows import HeldRows
from khop.distributed.holders import Holders
from khop.distributed.lanes import Lanes
from khop.distributed.peers import Message, Peers
from khop.distributed.row_question import Question, question
from khop.distributed.row_request import Specs, Type, written
from khop.distributed.row_wire import Wire, of_bytes, planes, received_rows, rounded, stored_dtype
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStore, Gathered, Rows, Wanted
from khop.partition.by_owner import first_outside
from khop.schema import ColumnSpec

ANSWERING = Message("getting rows", "row")


@dataclass(frozen=True, eq=False)
class PartitionedFeatures:
    """A feature store over rows that ranks hold in parts. A gather is collective, of whatever rows on each.

    It makes three collectives, whatever is wanted: who asks how much, for which rows, and the rows of all
    types and columns. Ids travel ascending, each once, as differences; rows as they are stored, and are
    widened here, or rounded where `wire` says so, those held here too. Threads may share it where ranks make
    equally many gathers, as lanes do.
    """

    held: FeatureStore  # the rows that this rank holds, by the ids of all
    specs: Specs
    offsets: Mapping[Type, Sequence[int]]  # where the ids of each part begin, and where the last ones end
    holders: Holders
    lanes: Lanes
    kept: RowCache = field(default_factory=RowCache.empty)
    wire: Wire = Wire.STORED

    def gather(self, wanted: Wanted) -> Gathered:
        """The rows of all columns wanted, in the order of the ids; ValueError names what is missing."""
        for type_, rows in wanted.items():
            self._check(type_, rows)
        peers = self.lanes.peers
        questions = [question for type_, rows in wanted.items() for question in self._questions(type_, rows)]
        self._count(peers, wanted, questions)
        answers = self._answers(peers, questions)
        gathered = self._own(wanted)
        for each in questions:
            rows, columns = wanted[each.type_], gathered[each.type_]
            self._place_kept(each, rows, columns)
        for rank, answer in enumerate(answers):
            for each in questions:
                answer = self._place(rank, answer, each, wanted[each.type_], gathered[each.type_])
        return gathered

    def _check(self, type_: Type, rows: Rows) -> None:
        if type_ not in self.specs:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(self.specs)}")
        for name in rows.columns:
            if name not in self.specs[type_]:
                raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(self.specs[type_])}")
        bounds = self.offsets[type_][0], self.offsets[type_][-1]
        position = first_outside(rows.ids, bounds)
        if position >= 0 and rows.columns:
            raise ValueError(
                f"column {rows.columns[0]!r} of {type_!r}: row id {int(rows.ids[position])} at position "
                f"{position}: must be in [{bounds[0]}, {bounds[1]})"
            )

    def _questions(self, type_: Type, rows: Rows) -> list[Question]:
        """One for the columns that are wanted of equally many ids each."""
        first, end = self._span(type_, self.holders.rank)
        elsewhere = ((rows.ids < first) | (rows.ids >= end)).nonzero().view(-1)
        ids, bounds = rows.ids[elsewhere], self.holders.bounds(self.offsets[type_])
        by_count: dict[int, list[str]] = {}
        for name in rows.columns:
            count = min(rows.limits.get(name, rows.ids.numel()), rows.ids.numel())
            by_count.setdefault(count, []).append(name)
        found = []
        for count, names in by_count.items():
            number, columns = int(torch.searchsorted(elsewhere, count)), tuple(names)
            slots = torch.full((number,), -1)
            if isinstance(type_, str) and self.kept.covers(type_, columns):
                slots = self.kept.find(type_, ids[:number])
            found.append(question(type_, columns, elsewhere[:number], ids[:number], bounds, slots))
        return found

    def _answers(self, peers: Peers, questions: Sequence[Question]) -> list[Tensor]:
        """From every rank the rows that it is asked for, while it gets those that it asks for. Collective."""
        held = HeldRows(
            self.held, self.specs, {t: self._span(t, self.holders.rank) for t in self.specs}, self.wire
        )
        messages, sizes = [], []
        for rank in range(self.holders.world_size):
            requests = [each.request(rank, self._span(each.type_, rank)[0]) for each in questions]
            messages.append(written(requests, self.specs))
            sizes.append(
                sum(
                    plane.size(request.ids.numel())
                    for request in requests
                    for name in request.columns
                    for plane in planes(self.specs[request.type_][name], self.wire)
                )
            )
        with peers.turn:
            asked = held.asked(peers, messages)
            return peers.reply(held.answers(peers, asked), sizes, ANSWERING)

    def _own(self, wanted: Wanted) -> Gathered:
        """What is held here in its place, and anything where other rows will go."""
        here: dict[Type, Rows] = {}
        for type_, rows in wanted.items():
            first, end = self._span(type_, self.holders.rank)
            if end > first:
                inside = (rows.ids >= first) & (rows.ids < end)
                here[type_] = replace(rows, ids=rows.ids.where(inside, first))
        found = self.held.gather(here)
        gathered: Gathered = {}
        for type_, rows in wanted.items():
            specs, columns = self.specs[type_], found.get(type_)
            gathered[type_] = {
                name: _room(specs[name], rows, name)
                if columns is None
                else rounded(columns[name], specs[name], self.wire)
                for name in rows.columns
            }
        return gathered

    def _place_kept(self, asked: Question, rows: Rows, columns: Mapping[str, Tensor]) -> None:
        if asked.slots.numel():
            wanted = Rows(asked.slots, asked.columns, as_float32=rows.as_float32)
            for name, found in self.kept.rows.gather({asked.type_: wanted})[asked.type_].items():
                columns[name].index_copy_(0, asked.kept_at, found)

    def _place(
        self, rank: int, answer: Tensor, asked: Question, rows: Rows, columns: Mapping[str, Tensor]
    ) -> Tensor:
        """Put what a rank has sent for one question where it is wanted; what is left of its answer."""
        count = asked.counts[rank]
        for name in asked.columns:
            spec, sent = self.specs[asked.type_][name], []
            for plane in planes(spec, self.wire):
                sent.append(of_bytes(answer, plane, count))
                answer = answer[plane.size(count) :]
            if count:
                found = received_rows(sent, spec, self.wire)
                asked.place(rank, _widened(found, spec, name in rows.as_float32), columns[name])
        return answer

    def _span(self, type_: Type, rank: int) -> tuple[int, int]:
        return self.holders.held(self.offsets[type_], rank)

    def _count(self, peers: Peers, wanted: Wanted, questions: Sequence[Question]) -> None:
        """How many rows are wanted, lie elsewhere, are kept, and are asked for, columns of few ids apart."""
        for name in ("wanted_rows", "remote_rows", "kept_rows", "asked_rows", "asked_bytes"):
            peers.count(name, 0)
        peers.count("wanted_rows", sum(rows.ids.numel() for rows in wanted.values()))
        for each in questions:
            row_bytes = sum(
                plane.row_bytes
                for name in each.columns
                for plane in planes(self.specs[each.type_][name], self.wire)
            )
            peers.count("remote_rows", each.kept_at.numel() + each.asked_at.numel())
            peers.count("kept_rows", each.kept_at.numel())
            peers.count("asked_rows", each.ids.numel())
            peers.count("asked_bytes", each.ids.numel() * row_bytes)


@dataclass(frozen=True, eq=False)
class ShiftedRows:
    """A feature store whose rows are numbered from 0, by ids that begin elsewhere."""

    store: FeatureStore
    first: Mapping[Type, int]  # the id of each type's row 0

    def gather(self, wanted: Wanted) -> Gathered:
        """The rows of all columns wanted, in the order of the ids."""
        return self.store.gather(
            {t: replace(rows, ids=rows.ids - self.first[t]) for t, rows in wanted.items()}
        )


def _room(spec: ColumnSpec, rows: Rows, name: str) -> Tensor:
    """Memory for the rows of a column."""
    count = min(rows.limits.get(name, rows.ids.numel()), rows.ids.numel())
    is_widened = name in rows.as_float32 and spec.is_narrow
    return torch.empty(count, *spec.shape, dtype=torch.float32 if is_widened else stored_dtype(spec))


def _widened(rows: Tensor, spec: ColumnSpec, as_float32: bool) -> Tensor:
    if not (as_float32 and spec.is_narrow):
        return rows
    scales = None if spec.scales is None else torch.tensor(spec.scales).view(spec.shape)
    return rows.float() if scales is None else rows.float() * scales
