"""Serialization of arrays in messages between ranks: each padded to 8 bytes and read without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from zlib import crc32

import torch
from torch import Tensor

from khop.draw import DrawKey, mix64

_ALIGNED = 8  # bytes that an array is padded to, so that the next one can be viewed as any dtype
_INT32 = 1 << 31


class Reader:
    """Reads arrays from a message, one after another."""

    def __init__(self, message: Tensor) -> None:
        self._left = message

    @property
    def is_done(self) -> bool:
        """True if the whole message was read."""
        return self._left.numel() == 0

    def take(self, dtype: torch.dtype, count: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Return the next array (count, *shape), as a view; ValueError if the message is too short."""
        size = count * prod(shape) * dtype.itemsize
        if count < 0 or padded(size) > self._left.numel():
            raise ValueError(
                f"{count} rows of {dtype} {shape} do not fit in the last {self._left.numel()} bytes"
            )
        array, self._left = self._left[:size], self._left[padded(size) :]
        return array.view(dtype).view(count, *shape) if shape else array.view(dtype)

    def numbers(self, count: int) -> list[int]:
        """Return the next int64 numbers."""
        return self.take(torch.int64, count).tolist()

    def below(self, limit: int, count: int, what: str) -> Tensor:
        """Return the next ids, written as `narrowest(limit)`; ValueError names an id outside [0, limit)."""
        ids = self.take(narrowest(limit), count)
        check_below(ids, limit, what)
        return ids

    def check_done(self) -> None:
        """Check that the whole message was read; ValueError if bytes are left."""
        if not self.is_done:
            raise ValueError(f"{self._left.numel()} bytes are left after the last array")


class Writer:
    """Writes arrays into a message of the right size, one after another."""

    def __init__(self, message: Tensor) -> None:
        self._left = message

    def room(self, dtype: torch.dtype, count: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Return the place of the next array (count, *shape), to be filled; its padding is zero."""
        size = count * prod(shape) * dtype.itemsize
        place = self._left[:size]
        if size < padded(size):
            self._left[size : padded(size)] = 0
        self._left = self._left[padded(size) :]
        return place.view(dtype).view(count, *shape) if shape else place.view(dtype)

    def put(self, values: Tensor, dtype: torch.dtype, count: int | None = None) -> None:
        """Write values as this dtype, with zeros up to `count` numbers."""
        if count is None or count == values.numel():
            self.room(dtype, values.numel()).copy_(values)
            return
        place = self.room(dtype, count)
        place[: values.numel()] = values
        place[values.numel() :] = 0


def as_bytes(arrays: Sequence[Tensor]) -> Tensor:
    """Return the padded arrays one after another, uint8 (n)."""
    flat: list[Tensor] = []
    for array in arrays:
        content = array.contiguous().view(-1).view(torch.uint8)
        flat.append(content)
        if missing := -content.numel() % _ALIGNED:
            flat.append(content.new_zeros(missing))
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)


def padded(size: int) -> int:
    """Return the bytes that an array of `size` bytes takes."""
    return -(-size // _ALIGNED) * _ALIGNED


def narrowest(count: int) -> torch.dtype:
    """Return the dtype in which numbers below `count` are sent."""
    return torch.int32 if count <= _INT32 else torch.int64


def check_below(numbers: Tensor, limit: int, what: str) -> None:
    """Check that all numbers are in [0, limit); ValueError names a number that is not."""
    if not numbers.numel():
        return
    low, high = (int(end) for end in numbers.aminmax())
    if low < 0 or high >= limit:
        raise ValueError(f"{what} {low if low < 0 else high}, must be in [0, {limit})")


def agreement(key: DrawKey, *facts: object) -> int:
    """Return a hash of the key, its epoch and step, and the facts that ranks have to agree on for a draw.

    It fits in int64. Rules may draw by the keys of other steps, so two keys of one value can differ.
    """
    return mix64(key.value ^ crc32(repr((key.of_epoch, key.step, *facts)).encode())) >> 1
