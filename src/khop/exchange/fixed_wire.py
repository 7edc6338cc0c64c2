"""Format of rows between ranks with the same number of bytes for every rank and step.

Each rank has a share of a buffer: a header, then one section per array, with room for `capacity` ids. So the
sizes of messages depend on no batch, and a device makes and reads them without its host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.exchange.codec import padded
from khop.exchange.peers import MARK_NUMBERS
from khop.exchange.row_wire import Wire, WireField, wire_fields
from khop.schema import NodeType, Specs

_FLAGS = 1  # int64 behind the mark: 1 if some rank has more ids for this rank than fit
_NUMBER = 8  # bytes


@dataclass(frozen=True)
class RowGroup:
    """Columns of one type that are requested by the same ids."""

    type_: NodeType
    columns: tuple[str, ...]
    capacity: int  # distinct ids for each rank
    ids: torch.dtype  # int32 or int64, as the ranges of ids of all ranks need


@dataclass(frozen=True)
class FixedWire:
    """Format of requests and answers of a batch, the same on all ranks.

    A request has the mark, the overflow flag and the number of ids of each group in its header. An answer has
    the mark. What lies behind the last id of a group is undefined.
    """

    groups: tuple[RowGroup, ...]
    specs: Specs
    wire: Wire
    world_size: int

    @property
    def request_bytes(self) -> int:
        """Bytes of a request to one rank."""
        ids = sum(padded(group.capacity * group.ids.itemsize) for group in self.groups)
        return _NUMBER * self._request_header + ids

    @property
    def answer_bytes(self) -> int:
        """Bytes of an answer to one rank."""
        rows = (padded(group.capacity * field.row_bytes) for group, field in self._fields())
        return _NUMBER * MARK_NUMBERS + sum(rows)

    def requests(self, device: torch.device) -> Tensor:
        """Return memory for requests to all ranks, uint8 (ranks, bytes), undefined."""
        return torch.empty((self.world_size, self.request_bytes), dtype=torch.uint8, device=device)

    def answers(self, device: torch.device) -> Tensor:
        """Return memory for answers to all ranks, uint8 (ranks, bytes), undefined."""
        return torch.empty((self.world_size, self.answer_bytes), dtype=torch.uint8, device=device)

    def request_header(self, requests: Tensor) -> Tensor:
        """Return a view of the headers: int64 (ranks, mark, flag and number of ids of each group)."""
        return requests[:, : _NUMBER * self._request_header].view(torch.int64)

    def answer_header(self, answers: Tensor) -> Tensor:
        """Return a view of the headers: int64 (ranks, mark)."""
        return answers[:, : _NUMBER * MARK_NUMBERS].view(torch.int64)

    def ids(self, requests: Tensor) -> list[Tensor]:
        """Return views of the ids of each group, (ranks, capacity), counted from the first of the owner."""
        found, start = [], _NUMBER * self._request_header
        for group in self.groups:
            size = group.capacity * group.ids.itemsize
            found.append(requests[:, start : start + size].view(group.ids))
            start += padded(size)
        return found

    def rows(self, answers: Tensor) -> list[dict[str, list[Tensor]]]:
        """Return views of the rows of each group: by column, its tensors (ranks, capacity, *shape)."""
        found: list[dict[str, list[Tensor]]] = []
        start = _NUMBER * MARK_NUMBERS
        for group in self.groups:
            of_group: dict[str, list[Tensor]] = {name: [] for name in group.columns}
            for name in group.columns:
                for field in wire_fields(self.specs[group.type_][name], self.wire):
                    size = group.capacity * field.row_bytes
                    of_group[name].append(_section(answers, start, size, group.capacity, field))
                    start += padded(size)
            found.append(of_group)
        return found

    def write_mark(self, headers: Tensor, mark: Sequence[int]) -> None:
        """Write the mark of an exchange into headers of requests or answers; nothing is copied to a GPU."""
        for place, number in enumerate(mark):
            headers[:, place].fill_(number)

    @property
    def _request_header(self) -> int:
        return MARK_NUMBERS + _FLAGS + len(self.groups)

    def _fields(self) -> Iterator[tuple[RowGroup, WireField]]:
        for group in self.groups:
            for name in group.columns:
                for field in wire_fields(self.specs[group.type_][name], self.wire):
                    yield group, field


def _section(answers: Tensor, start: int, size: int, capacity: int, field: WireField) -> Tensor:
    """Return the view of a section: (ranks, capacity, *shape)."""
    shape = (answers.shape[0], capacity, *field.shape)
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=field.dtype, device=answers.device)
    section: Tensor = answers[:, start : start + size].view(field.dtype).unflatten(1, shape[1:])
    return section
