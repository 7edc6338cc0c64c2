"""Messages to or from all ranks as they lie in memory: one behind another, each with a mark at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

MARK_BYTES = 24
_ALIGNED = 8  # bytes to which a message is filled up, so that its numbers can be read in place


class Memory:
    """Room for one thing after another: fresh pages cost more than what is written into them.

    Not from the core's pool, which threads that know no Python could not give it back to.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """uint8 (size), whatever is in it: where the bytes of the last call may be."""
        if self._room.numel() < size:
            self._room = torch.empty(0, dtype=torch.uint8)  # or both would be there at once
            self._room = torch.empty(size + size // 4, dtype=torch.uint8)
        return self._room[:size]


@dataclass(frozen=True)
class Messages:
    """One for, or from, each rank."""

    content: Tensor  # uint8: all of them, filled up, with room for a mark behind each
    payloads: tuple[Tensor, ...]  # uint8, what each says

    @classmethod
    def of(cls, content: Tensor, sizes: Sequence[int]) -> Messages:
        """Messages of so many bytes, which lie in `content`."""
        ends = list(accumulate(wire_bytes(size) for size in sizes))
        payloads = []
        for (start, end), size in zip(pairwise([0, *ends]), sizes, strict=True):
            content[start + size : end - MARK_BYTES] = 0
            payloads.append(content[start : start + size])
        return cls(content, tuple(payloads))

    @property
    def marks(self) -> list[Tensor]:
        """int64 (3), of each rank's message."""
        ends = accumulate(wire_bytes(payload.numel()) for payload in self.payloads)
        return [self.content[end - MARK_BYTES : end].view(torch.int64) for end in ends]


def wire_bytes(size: int) -> int:
    """What a message of so many bytes takes."""
    return -(-size // _ALIGNED) * _ALIGNED + MARK_BYTES
