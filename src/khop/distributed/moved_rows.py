"""Rows that ranks hand to one another, checked as all messages are. Every function is collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from khop.distributed.peers import Message, Peers, naming

_AT_ONCE = 1 << 20  # rows in a message
_MOST_BYTES = 1 << 36


def moved(peers: Peers, rows: Sequence[Tensor], message: Message) -> list[Tensor]:
    """From every rank the rows (n, ...) that it has for this one; `rows` are those for each rank.

    All ranks give rows of one dtype and shape.
    """
    like = rows[0]
    row_bytes = like.element_size() * prod(like.shape[1:])
    payloads = [of_rank.contiguous().view(torch.uint8).flatten() for of_rank in rows]
    found = []
    for rank, payload in enumerate(peers.exchange(payloads, message, _MOST_BYTES)):
        with naming(peers, rank, message):
            if payload.numel() % row_bytes:
                raise ValueError(f"{payload.numel()} bytes, where rows take {row_bytes} each")
        # Copied, as the message is there until the next exchange only.
        found.append(payload.view(like.dtype).view(-1, *like.shape[1:]).clone())
    return found


def told(peers: Peers, rows: Tensor, message: Message) -> list[Tensor]:
    """The rows (n, ...) of every rank, on every rank."""
    return moved(peers, [rows] * peers.world_size, message)


def rounds(peers: Peers, count: int, message: Message) -> Iterator[slice]:
    """Stretches of so many rows of this rank's, few enough to be sent at once; as many on every rank."""
    most = max(int(of_rank) for of_rank in told(peers, torch.tensor([count]), message))
    number = -(-most // _AT_ONCE)
    for turn in range(number):
        yield slice(count * turn // number, count * (turn + 1) // number)
