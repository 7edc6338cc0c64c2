"""Exchange of rows between ranks, checked as all messages are. Every function is collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from khop.exchange.codec import check_below
from khop.exchange.peers import Message, Peers, naming

_AT_ONCE = 1 << 20  # rows per message
_MOST_BYTES = 1 << 36
_MOST_ROWS = 1 << 48  # that a rank can announce


def moved(peers: Peers, rows: Sequence[Tensor], message: Message) -> list[Tensor]:
    """Send `rows[q]`, (n, ...), to each rank q, and return the rows that each rank sent to this one.

    The dtype and the shape of a row have to be the same on all ranks. Rows without numbers are sent as one
    byte each, which carries their count.
    """
    like = rows[0]
    row_bytes = like.element_size() * prod(like.shape[1:])
    payloads = [
        of_rank.contiguous().view(torch.uint8).flatten()
        if row_bytes
        else torch.zeros(len(of_rank), dtype=torch.uint8)
        for of_rank in rows
    ]
    found = []
    for rank, payload in enumerate(peers.exchange(payloads, message, _MOST_BYTES)):
        with naming(peers, rank, message):
            if row_bytes and payload.numel() % row_bytes:
                raise ValueError(f"{payload.numel()} bytes, where rows take {row_bytes} each")
        if not row_bytes:
            found.append(like.new_empty(payload.numel(), *like.shape[1:]))
            continue
        # Copied, as the next exchange overwrites the message.
        found.append(payload.view(like.dtype).view(-1, *like.shape[1:]).clone())
    return found


def sent_to_all(peers: Peers, rows: Tensor, message: Message) -> list[Tensor]:
    """Return the rows (n, ...) of every rank, on every rank."""
    return moved(peers, [rows] * peers.world_size, message)


def summed(peers: Peers, numbers: Tensor, message: Message) -> Tensor:
    """Return the sums over all ranks, (n, ...); all ranks give as many numbers."""
    of_ranks = sent_to_all(peers, numbers, message)
    for rank, of_rank in enumerate(of_ranks):
        with naming(peers, rank, message):
            if of_rank.shape != numbers.shape:
                raise ValueError(f"{of_rank.shape[0]} rows, where {numbers.shape[0]} are due")
    return torch.stack(of_ranks).sum(0)


def rounds(peers: Peers, count: int, message: Message) -> Iterator[slice]:
    """Yield slices of this rank's `count` rows that fit in one message; equally many on every rank."""
    most = 0
    for rank, of_rank in enumerate(sent_to_all(peers, torch.tensor([count]), message)):
        with naming(peers, rank, message):
            if of_rank.numel() != 1:
                raise ValueError(f"{of_rank.numel()} numbers, where one is due")
            check_below(of_rank, _MOST_ROWS, "number of rows")
        most = max(most, int(of_rank))
    number = -(-most // _AT_ONCE)
    for turn in range(number):
        yield slice(count * turn // number, count * (turn + 1) // number)
