"""Exchange of a table's rows between ranks: broadcast to all ranks, or requested from their owners.

All functions are collective. `bounds` hold the first row of each rank, and the end of the last. The bytes
sent grow with the rows that are requested or broadcast, never with the table. The exceptions have "whole" in
their name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, distributed

from khop.runtime.group import Group, placed


def row_bounds(group: Group, count: int) -> list[int]:
    """Return the first row of each rank in a table of `count` rows, and the end of the last."""
    return [-(-count * rank // group.world_size) for rank in range(group.world_size + 1)]


def gathered_from_all(group: Group, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids (n) and values (n, ...) of every rank, in rank order, on every rank."""
    counts = group.gather(torch.tensor([ids.numel()])).flatten().tolist()

    def joined(tensor: Tensor) -> Tensor:
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        return torch.cat([rows[:count] for rows, count in zip(group.gather(padded), counts, strict=True)])

    return joined(ids), joined(values)


def sent_to_owners(group: Group, bounds: Sequence[int], ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Send ids and values to the ranks that store these rows; return the received ones in rank order.

    `ids` ascend.
    """
    sent, received = _splits(group, bounds, ids)
    return _exchanged(ids, sent, received), _exchanged(values, sent, received)


def asked_of_owners(group: Group, bounds: Sequence[int], held: Tensor, ids: Tensor) -> Tensor:
    """Return rows (ids, ...) from the ranks that store them, in the order of the ids, which may repeat."""
    wanted, order = ids.sort()
    sent, received = _splits(group, bounds, wanted)
    asked = _exchanged(wanted, sent, received) - bounds[group.rank]
    rows = _exchanged(held.index_select(0, asked), received, sent)
    return torch.empty_like(rows).index_copy_(0, order, rows)


def whole_table(group: Group, bounds: Sequence[int], held: Tensor) -> Tensor:
    """Return all rows, on every rank, in main memory."""
    out = torch.empty(bounds[-1], *held.shape[1:], dtype=held.dtype)
    pieces = [out[first:last] for first, last in pairwise(bounds)]
    pieces[group.rank].copy_(held)
    group.share_rows(pieces, range(group.world_size))
    return out


def whole_table_on_rank_0(group: Group, bounds: Sequence[int], held: Tensor) -> Tensor:
    """Return all rows, in main memory, on rank 0; no rows on other ranks."""
    to_rank_0 = [held.shape[0], *[0] * (group.world_size - 1)]
    counts = [last - first for first, last in pairwise(bounds)]
    return _exchanged(held, to_rank_0, counts if group.rank == 0 else [0] * len(counts)).cpu()


def _splits(group: Group, bounds: Sequence[int], ids: Tensor) -> tuple[list[int], list[int]]:
    """Return the number of ascending ids stored by each rank, and the number requested here by each rank."""
    ends = torch.searchsorted(ids, torch.tensor(bounds, device=ids.device))
    of_ranks = group.gather(ends.diff().cpu())
    return of_ranks[group.rank].tolist(), of_ranks[:, group.rank].tolist()


def _exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    mine = placed(rows).contiguous()
    out = mine.new_empty(sum(received), *rows.shape[1:])
    distributed.all_to_all_single(out, mine, received, sent)
    return out.to(rows.device)
