"""A rank among others whose messages a test has written."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch import Tensor, distributed

from khop.distributed.exchange.peers import Message, Peers
from khop.distributed.processes.group import Group

ASKING = Message("asking for rows", "id")
RANKS = 3
LIMIT = 1 << 10


class Done:
    """Work that was done when it was begun."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Forged:
    """A network that gives this rank what a forger has written into each message."""

    def __init__(self, *written: bytes) -> None:
        self.written = list(written)

    def all_to_all_single(self, found: Tensor, given: Tensor, *_: object, **__: object) -> Done:
        content = bytearray(self.written.pop(0))
        lent = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        into = found.view(torch.uint8).view(-1)
        into[: min(lent.numel(), into.numel())] = lent[: into.numel()]
        return Done()


def peers_of(
    monkeypatch: pytest.MonkeyPatch, network: Forged, step: tuple[int, int] | None = (1, 2)
) -> Peers:
    """Rank 0 of three, in a batch of this epoch and step, or outside of batches."""
    monkeypatch.setattr(distributed, "all_to_all_single", network.all_to_all_single)
    peers = Peers(Group(0, RANKS), object())  # type: ignore[arg-type]
    if step is not None:
        peers.begin(*step, lambda: False)
    return peers


def header(size: int, kind: int = ASKING.kind, place: int = 1 << 32 | 2, number: int = 0) -> bytes:
    """The header of one rank's message."""
    return torch.tensor([kind, place, number, size]).numpy().tobytes()


def message(body: bytes, kind: int = ASKING.kind, place: int = 1 << 32 | 2, number: int = 0) -> bytes:
    """One rank's message, padded, with its mark."""
    return body + bytes(-len(body) % 8) + torch.tensor([kind, place, number]).numpy().tobytes()
