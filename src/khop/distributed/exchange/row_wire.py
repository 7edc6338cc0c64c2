"""Message formats of rows between ranks: sorted ids as requests, rows as responses, exact or rounded.

In the fixed-size format, each rank has a share of a buffer: a header, then one section per array with a
capacity of `capacity` ids. Message sizes do not depend on the batch, so a GPU writes and reads messages
without synchronizing with the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from khop.distributed.exchange.peers import MARK_NUMBERS, Reader, as_bytes, padded
from khop.schema import ColumnSpec, NodeType, Specs, Type

_LARGEST = 127  # largest int8 value that is sent
_HEADER = 5  # int64: type, number of rows, bytes per difference, number of columns, first id
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Wire(StrEnum):
    """Format in which float32 and float64 feature rows are sent. Other columns are sent as stored."""

    STORED = "stored"
    FLOAT16 = "float16"  # rounded
    INT8 = "int8"  # rounded to 255 steps from -m to m, the row's largest magnitude


@dataclass(frozen=True)
class WireField:
    """One of the tensors that encode a column's rows in a message."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # of one row

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize


def wire_fields(spec: ColumnSpec, wire: Wire) -> tuple[WireField, ...]:
    """Return the tensors that encode a column's rows in a message."""
    if not is_rounded(spec, wire):
        return (WireField(stored_dtype(spec), spec.shape),)
    if wire is Wire.FLOAT16:
        return (WireField(torch.float16, spec.shape),)
    return WireField(torch.float32, ()), WireField(torch.int8, spec.shape)


def stored_dtype(spec: ColumnSpec) -> torch.dtype:
    """Return the dtype of a column's tensor."""
    dtype = getattr(torch, spec.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def is_rounded(spec: ColumnSpec, wire: Wire) -> bool:
    """Return True if a column's rows are rounded: features, but not scalars such as times."""
    return wire is not Wire.STORED and spec.dtype in ("float32", "float64") and spec.shape != ()


def sent_rows(rows: Tensor, spec: ColumnSpec, wire: Wire) -> tuple[Tensor, ...]:
    """Encode rows for the wire, one tensor per field."""
    if not is_rounded(spec, wire):
        return (rows,)
    if wire is Wire.FLOAT16:
        return (rows.half(),)
    flat = rows.flatten(1).float()
    steps = flat.abs().amax(dim=1) / _LARGEST if flat.shape[1] else flat.new_zeros(len(flat))
    numbers = (flat / steps.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    return steps, numbers.clamp(-_LARGEST, _LARGEST).to(torch.int8).view(rows.shape)


def received_rows(sent: Sequence[Tensor], spec: ColumnSpec, wire: Wire) -> Tensor:
    """Decode rows from their fields, in the stored dtype of the column."""
    if len(sent) == 1:
        return sent[0].to(stored_dtype(spec))
    steps, numbers = sent
    return (numbers.float() * steps.view(-1, *[1] * len(spec.shape))).to(stored_dtype(spec))


def rounded(rows: Tensor, spec: ColumnSpec, wire: Wire) -> Tensor:
    """Return the rows rounded as if they were sent, so that local and remote rows are equal."""
    return received_rows(sent_rows(rows, spec, wire), spec, wire) if is_rounded(spec, wire) else rows


@dataclass(frozen=True)
class RowRequest:
    """Rows of one type. In a message, ids are relative to the first row of the receiving rank."""

    type_: Type
    columns: tuple[str, ...]
    ids: Tensor  # int64 (n), ascending, unique; at least one


def written(requests: Sequence[RowRequest], specs: Specs) -> Tensor:
    """Encode requests for `read`, uint8 (n); requests without rows are omitted."""
    types = list(specs)
    arrays: list[Tensor] = []
    for request in requests:
        if not request.ids.numel():
            continue
        names = list(specs[request.type_])
        differences = request.ids.diff()
        width = _width(differences)
        columns = [names.index(name) for name in request.columns]
        header = [types.index(request.type_), request.ids.numel(), width, len(columns), int(request.ids[0])]
        arrays += [torch.tensor([*header, *columns]), differences.to(_WIDTHS[width])]  # dropped bytes are 0
    return as_bytes(arrays)


def read(message: Tensor, specs: Specs, held: Mapping[Type, int]) -> list[RowRequest]:
    """Decode the requests in a message; `held` is the number of stored rows of each type.

    ValueError names the part of the message that is invalid.
    """
    reader, requests = Reader(message), list[RowRequest]()
    while not reader.is_done:
        requests.append(_next(reader, specs, held))
    return requests


def largest(specs: Specs, held: Mapping[Type, int]) -> int:
    """Return the maximum bytes of a message that requests each row of each column at most once."""
    return sum(
        8 * (_HEADER + len(columns) + held[type_] + 1) * max(1, len(columns))
        for type_, columns in specs.items()
    )


def answer_bytes(requests: Sequence[RowRequest], specs: Specs, wire: Wire) -> int:
    """Return the size of the answer to these requests, in bytes."""
    return sum(
        padded(request.ids.numel() * field.row_bytes)
        for request in requests
        for name in request.columns
        for field in wire_fields(specs[request.type_][name], wire)
    )


def rows_of_answer(
    answer: Tensor, requests: Sequence[RowRequest], specs: Specs, wire: Wire
) -> list[dict[str, Tensor]]:
    """Decode an answer: for each request, the rows of each column."""
    reader, found = Reader(answer), list[dict[str, Tensor]]()
    for request in requests:
        rows = {}
        for name in request.columns:
            spec = specs[request.type_][name]
            sent = [
                reader.take(field.dtype, request.ids.numel(), field.shape)
                for field in wire_fields(spec, wire)
            ]
            rows[name] = received_rows(sent, spec, wire)
        found.append(rows)
    return found


def _next(reader: Reader, specs: Specs, held: Mapping[Type, int]) -> RowRequest:
    """Decode the next request of a message."""
    type_number, count, width, num_columns, first = reader.numbers(_HEADER)
    types = list(specs)
    if not 0 <= type_number < len(types):
        raise ValueError(f"type {type_number} of {len(types)}")
    type_ = types[type_number]
    names = list(specs[type_])
    if width not in _WIDTHS or not 1 <= count <= held[type_] or not 0 <= num_columns <= len(names):
        raise ValueError(
            f"{count} rows of {num_columns} columns of {type_!r} in {width} bytes each, of {held[type_]} "
            f"rows and {len(names)} columns"
        )
    chosen = reader.numbers(num_columns)
    if len(set(chosen)) < len(chosen) or not all(0 <= number < len(names) for number in chosen):
        raise ValueError(f"columns {chosen} of {type_!r}, which has {len(names)}")
    ids = _ids(first, reader.take(_WIDTHS[width], count - 1), width)
    low, high = (int(id_) for id_ in ids.aminmax())
    if low < 0 or high >= held[type_]:
        raise ValueError(
            f"row id {low if low < 0 else high} of {type_!r} is out of range: there are {held[type_]} rows"
        )
    return RowRequest(type_, tuple(names[number] for number in chosen), ids)


def _width(differences: Tensor) -> int:
    """Return the smallest width in bytes that fits every difference."""
    most = int(differences.max()) if differences.numel() else 0
    return next(width for width in _WIDTHS if width == 8 or most < 1 << 8 * width)


def _ids(first: int, packed: Tensor, width: int) -> Tensor:
    ids = torch.empty(packed.numel() + 1, dtype=torch.int64)
    ids[0] = first
    ids[1:] = packed
    if width in (2, 4):  # these dtypes are signed: keep the low bits
        ids[1:] &= (1 << 8 * width) - 1
    return ids.cumsum_(0)


_FLAGS = 1  # int64 after the mark: 1 if some rank has more ids for this rank than fit
_NUMBER = 8  # bytes


@dataclass(frozen=True)
class RowGroup:
    """Columns of one type that are requested with the same ids."""

    type_: NodeType
    columns: tuple[str, ...]
    capacity: int  # distinct ids for each rank
    ids: torch.dtype  # int32 or int64, depending on the id ranges of all ranks


@dataclass(frozen=True)
class FixedWire:
    """Format of requests and answers of a batch, the same on all ranks.

    A request has the mark, the overflow flag and the number of ids of each group in its header. An answer has
    the mark. Bytes after the last id of a group are undefined.
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
        """Return uninitialized memory for requests to all ranks, uint8 (ranks, bytes)."""
        return torch.empty((self.world_size, self.request_bytes), dtype=torch.uint8, device=device)

    def answers(self, device: torch.device) -> Tensor:
        """Return uninitialized memory for answers to all ranks, uint8 (ranks, bytes)."""
        return torch.empty((self.world_size, self.answer_bytes), dtype=torch.uint8, device=device)

    def request_header(self, requests: Tensor) -> Tensor:
        """Return a view of the headers: int64 (ranks, mark, flag and number of ids of each group)."""
        return requests[:, : _NUMBER * self._request_header].view(torch.int64)

    def answer_header(self, answers: Tensor) -> Tensor:
        """Return a view of the headers: int64 (ranks, mark)."""
        return answers[:, : _NUMBER * MARK_NUMBERS].view(torch.int64)

    def ids(self, requests: Tensor) -> list[Tensor]:
        """Return views of each group's ids, (ranks, capacity), relative to the owner's first id."""
        found, start = [], _NUMBER * self._request_header
        for group in self.groups:
            size = group.capacity * group.ids.itemsize
            found.append(requests[:, start : start + size].view(group.ids))
            start += padded(size)
        return found

    def rows(self, answers: Tensor) -> list[dict[str, list[Tensor]]]:
        """Return views of each group's rows: by column, its tensors (ranks, capacity, *shape)."""
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
        """Write an exchange's mark into headers of requests or answers, without a copy from the host."""
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
