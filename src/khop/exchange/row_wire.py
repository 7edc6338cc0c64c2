"""Wire format of rows: as stored, or rounded to fewer bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from khop.schema import ColumnSpec

_LARGEST = 127  # largest int8 value that is sent


class Wire(StrEnum):
    """Format in which rows of float32 and float64 features are sent. Other columns are sent as stored."""

    STORED = "stored"
    FLOAT16 = "float16"  # rounded
    INT8 = "int8"  # rounded to 255 steps from -m to m, the row's largest magnitude


@dataclass(frozen=True)
class WireField:
    """One of the tensors that rows of a column are sent as."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # of one row

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def size(self, count: int) -> int:
        """Return the bytes of `count` rows, padded so that the next field is aligned."""
        return -(-count * self.row_bytes // 8) * 8


def planes(spec: ColumnSpec, wire: Wire) -> tuple[WireField, ...]:
    """Return the tensors that rows of a column are sent as."""
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
    """Return True if rows of a column are rounded: features, never a single number such as a time."""
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
    """Return the rows as they would arrive, so that local and remote rows are equal."""
    return received_rows(sent_rows(rows, spec, wire), spec, wire) if is_rounded(spec, wire) else rows


def as_bytes(rows: Tensor) -> list[Tensor]:
    """Return rows as bytes, and the padding that `WireField.size` counts."""
    flat = rows.contiguous().view(-1).view(torch.uint8)
    missing = -flat.numel() % 8
    return [flat, flat.new_zeros(missing)] if missing else [flat]


def of_bytes(content: Tensor, plane: WireField, count: int) -> Tensor:
    """View the first `count` rows of `content` in the dtype and shape of the field."""
    return content[: count * plane.row_bytes].view(plane.dtype).view(count, *plane.shape)
