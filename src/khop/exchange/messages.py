"""Memory layout of the messages to or from all ranks: one after another, each with a mark at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

MARK_BYTES = 24
_ALIGNED = 8  # bytes that a message is padded to, so that its numbers can be read in place


class Memory:
    """A reusable buffer: fresh pages cost more than the bytes that are written into them.

    It does not come from the native core's pool, as threads without Python could not return it there.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Return uint8 (size) with undefined content; it may reuse the memory of the previous call."""
        if self._room.numel() < size:
            self._room = torch.empty(0, dtype=torch.uint8)  # frees the old buffer before the new one exists
            self._room = torch.empty(size + size // 4, dtype=torch.uint8)
        return self._room[:size]


@dataclass(frozen=True)
class Messages:
    """One message for each rank, or from each rank."""

    content: Tensor  # uint8: all messages, padded, with space for a mark after each
    payloads: tuple[Tensor, ...]  # uint8, the content of each

    @classmethod
    def of(cls, content: Tensor, sizes: Sequence[int]) -> Messages:
        """Return views of messages with these sizes in bytes, which lie one after another in `content`."""
        ends = list(accumulate(wire_bytes(size) for size in sizes))
        payloads = []
        for (start, end), size in zip(pairwise([0, *ends]), sizes, strict=True):
            content[start + size : end - MARK_BYTES] = 0
            payloads.append(content[start : start + size])
        return cls(content, tuple(payloads))

    @property
    def marks(self) -> list[Tensor]:
        """The mark of each rank's message, int64 (3)."""
        ends = accumulate(wire_bytes(payload.numel()) for payload in self.payloads)
        return [self.content[end - MARK_BYTES : end].view(torch.int64) for end in ends]


def wire_bytes(size: int) -> int:
    """Return the bytes that a message of `size` bytes takes, padding and mark included."""
    return -(-size // _ALIGNED) * _ALIGNED + MARK_BYTES
