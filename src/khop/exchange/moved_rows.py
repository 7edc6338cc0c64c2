"""Exchange of rows between ranks, checked as all messages are. Every function is collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from khop.exchange.peers import Message, Peers, naming

_AT_ONCE = 1 << 20  # rows per message
_MOST_BYTES = 1 << 36


def moved(peers: Peers, rows: Sequence[Tensor], message: Message) -> list[Tensor]:
    """Send `rows[q]`, (n, ...), to each rank q, and return the rows that each rank sent to this one.

    The dtype and the shape of a row have to be the same on all ranks.
    """
    like = rows[0]
    row_bytes = like.element_size() * prod(like.shape[1:])
    payloads = [of_rank.contiguous().view(torch.uint8).flatten() for of_rank in rows]
    found = []
    for rank, payload in enumerate(peers.exchange(payloads, message, _MOST_BYTES)):
        with naming(peers, rank, message):
            if payload.numel() % row_bytes:
                raise ValueError(f"{payload.numel()} bytes, where rows take {row_bytes} each")
        # Copied, as the next exchange overwrites the message.
        found.append(payload.view(like.dtype).view(-1, *like.shape[1:]).clone())
    return found


def sent_to_all(peers: Peers, rows: Tensor, message: Message) -> list[Tensor]:
    """Return the rows (n, ...) of every rank, on every rank."""
    return moved(peers, [rows] * peers.world_size, message)


def rounds(peers: Peers, count: int, message: Message) -> Iterator[slice]:
    """Yield slices of this rank's `count` rows that fit in one message; equally many on every rank."""
    most = max(int(of_rank) for of_rank in sent_to_all(peers, torch.tensor([count]), message))
    number = -(-most // _AT_ONCE)
    for turn in range(number):
        yield slice(count * turn // number, count * (turn + 1) // number)
