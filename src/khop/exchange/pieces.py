"""Arrays of numbers one after another in a message, each padded to 8 bytes, so that it is read in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_INT32 = 1 << 31


class Reader:
    """Reads pieces from a message, one after another."""

    def __init__(self, message: Tensor) -> None:
        self._left = message

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return the next `count` numbers, as a view; ValueError if the message is too short."""
        size = count * dtype.itemsize
        if not 0 <= count <= self._left.numel() or filled(size) > self._left.numel():
            raise ValueError(f"{count} numbers of {dtype} in the last {self._left.numel()} bytes")
        piece, self._left = self._left[:size], self._left[filled(size) :]
        return piece.view(dtype)

    def check_done(self) -> None:
        """Check that the whole message was read; ValueError if bytes are left."""
        if self._left.numel():
            raise ValueError(f"{self._left.numel()} bytes too many")


class Writer:
    """Writes pieces into a message of the right size, one after another."""

    def __init__(self, message: Tensor) -> None:
        self._left = message

    def put(self, values: Tensor, dtype: torch.dtype, count: int | None = None) -> None:
        """Write values as this dtype, padded with zeros to `count` numbers."""
        count = values.numel() if count is None else count
        size = count * dtype.itemsize
        piece, rest = self._left[:size].view(dtype), self._left[size : filled(size)]
        piece[: values.numel()] = values
        piece[values.numel() :] = 0
        rest.zero_()
        self._left = self._left[filled(size) :]


def as_bytes(pieces: Sequence[Tensor]) -> Tensor:
    """Return the padded pieces one after another, uint8 (n)."""
    flat = [torch.empty(0, dtype=torch.uint8)]
    for piece in pieces:
        content = piece.contiguous().view(torch.uint8)
        flat += [content, content.new_zeros(filled(content.numel()) - content.numel())]
    return torch.cat(flat)


def filled(size: int) -> int:
    """Return the padded size of a piece of `size` bytes."""
    return -(-size // 8) * 8


def narrowest(count: int) -> torch.dtype:
    """Return the dtype in which numbers below `count` are sent."""
    return torch.int32 if count <= _INT32 else torch.int64


def check_below(numbers: Tensor, limit: int, what: str) -> None:
    """Check that all numbers are in [0, limit); ValueError names a number that is not."""
    if not numbers.numel():
        return
    low, high = (int(end) for end in numbers.aminmax())
    if low < 0 or high >= limit:
        raise ValueError(f"{what} {low if low < 0 else high}, where 0 to {limit - 1} can be")
