"""A request for rows between ranks: columns and ascending row ids, encoded in as few bytes as they fit in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.schema import ColumnSpec, EdgeType, NodeType

Type = NodeType | EdgeType
Specs = Mapping[Type, Mapping[str, ColumnSpec]]
_HEADER = 5  # int64: type, number of rows, bytes per difference, number of columns, first id
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class RowRequest:
    """Rows of one type. In a message, ids count from the first row of the receiving rank."""

    type_: Type
    columns: tuple[str, ...]
    ids: Tensor  # int64 (n), ascending, unique; at least one


def written(requests: Sequence[RowRequest], specs: Specs) -> Tensor:
    """Encode requests for `read`, uint8 (n) with n a multiple of 8; requests without rows are omitted."""
    types = list(specs)
    pieces: list[Tensor] = []
    for request in requests:
        if not request.ids.numel():
            continue
        names = list(specs[request.type_])
        differences = request.ids.diff()
        width = _width(differences)
        packed = differences.to(_WIDTHS[width]).view(torch.uint8)  # the dropped high bytes are 0
        columns = [names.index(name) for name in request.columns]
        header = [types.index(request.type_), request.ids.numel(), width, len(columns), int(request.ids[0])]
        pieces += [torch.tensor([*header, *columns]).view(torch.uint8), packed]
        pieces.append(packed.new_zeros(-packed.numel() % 8))
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)


def read(message: Tensor, specs: Specs, held: Mapping[Type, int]) -> list[RowRequest]:
    """Decode the requests in a message; `held` is the number of stored rows of each type.

    ValueError names the part of the message that is invalid.
    """
    if message.numel() % 8:
        raise ValueError(f"{message.numel()} bytes, no multiple of 8")
    requests: list[RowRequest] = []
    while message.numel():
        request, size = _first(message, specs, held)
        requests.append(request)
        message = message[size:]
    return requests


def largest(specs: Specs, held: Mapping[Type, int]) -> int:
    """Return the largest size in bytes of a message that requests each row of each column at most once."""
    return sum(
        8 * (_HEADER + len(columns) + held[type_] + 1) * max(1, len(columns))
        for type_, columns in specs.items()
    )


def _first(message: Tensor, specs: Specs, held: Mapping[Type, int]) -> tuple[RowRequest, int]:
    """Return the first request, and its size in bytes."""
    words = message.view(torch.int64)
    if words.numel() < _HEADER:
        raise ValueError(f"a request of {message.numel()} bytes")
    type_number, count, width, num_columns, first = words[:_HEADER].tolist()
    types = list(specs)
    if not 0 <= type_number < len(types):
        raise ValueError(f"type {type_number} of {len(types)}")
    type_ = types[type_number]
    names = list(specs[type_])
    if width not in _WIDTHS or not 1 <= count <= held[type_] or not 0 <= num_columns <= len(names):
        raise ValueError(
            f"{count} rows of {num_columns} columns of {type_!r} in {width} bytes each, where "
            f"{held[type_]} rows of {len(names)} columns are held"
        )
    begin = 8 * (_HEADER + num_columns)
    end = begin + (count - 1) * width
    if message.numel() < end:
        raise ValueError(f"a request of {end} bytes in a message of {message.numel()}")
    chosen = words[_HEADER : _HEADER + num_columns].tolist()
    if len(set(chosen)) < len(chosen) or not all(0 <= number < len(names) for number in chosen):
        raise ValueError(f"columns {chosen} of {type_!r}, which has {len(names)}")
    ids = _ids(first, message[begin:end].view(_WIDTHS[width]), width)
    low, high = (int(id_) for id_ in ids.aminmax())
    if low < 0 or high >= held[type_]:
        raise ValueError(f"row id {low if low < 0 else high} of {type_!r}, of which {held[type_]} are held")
    return RowRequest(type_, tuple(names[number] for number in chosen), ids), end + -end % 8


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
