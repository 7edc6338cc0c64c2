"""Rows of a table that go between ranks: each is told to all, or lies on one and is asked for there.

All functions are collective. `bounds` say where each rank's rows begin, and the last one's end. What is sent
grows with the rows that are asked for or told, never with the table, but where its name says whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, distributed

from khop.distributed.group import Group, placed


def row_bounds(group: Group, count: int) -> list[int]:
    """Where the rows of each rank begin, and the last ones end, of a table of `count`."""
    return [-(-count * rank // group.world_size) for rank in range(group.world_size + 1)]


def told_to_all(group: Group, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The ids (n) and values (n, ...) of every rank, rank after rank, on every rank."""
    counts = group.gather(torch.tensor([ids.numel()])).flatten().tolist()

    def joined(tensor: Tensor) -> Tensor:
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        return torch.cat([rows[:count] for rows, count in zip(group.gather(padded), counts, strict=True)])

    return joined(ids), joined(values)


def told_to_owners(group: Group, bounds: Sequence[int], ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The ids and values that any rank has for the rows held here, rank after rank. `ids` ascend."""
    sent, received = _splits(group, bounds, ids)
    return _exchanged(ids, sent, received), _exchanged(values, sent, received)


def asked_of_owners(group: Group, bounds: Sequence[int], held: Tensor, ids: Tensor) -> Tensor:
    """(ids, ...): rows from the ranks that hold them, in the order of the ids, which may repeat."""
    wanted, order = ids.sort()
    sent, received = _splits(group, bounds, wanted)
    asked = _exchanged(wanted, sent, received) - bounds[group.rank]
    rows = _exchanged(held.index_select(0, asked), received, sent)
    return torch.empty_like(rows).index_copy_(0, order, rows)


def whole_table(group: Group, bounds: Sequence[int], held: Tensor) -> Tensor:
    """All rows, on every rank, in main memory."""
    out = torch.empty(bounds[-1], *held.shape[1:], dtype=held.dtype)
    pieces = [out[first:last] for first, last in pairwise(bounds)]
    pieces[group.rank].copy_(held)
    group.share_rows(pieces, range(group.world_size))
    return out


def whole_table_on_rank_0(group: Group, bounds: Sequence[int], held: Tensor) -> Tensor:
    """All rows, in main memory, on rank 0; on the others none."""
    to_rank_0 = [held.shape[0], *[0] * (group.world_size - 1)]
    counts = [last - first for first, last in pairwise(bounds)]
    return _exchanged(held, to_rank_0, counts if group.rank == 0 else [0] * len(counts)).cpu()


def _splits(group: Group, bounds: Sequence[int], ids: Tensor) -> tuple[list[int], list[int]]:
    """How many of the ascending ids each rank holds, and how many each rank asks of this one."""
    ends = torch.searchsorted(ids, torch.tensor(bounds, device=ids.device))
    of_ranks = group.gather(ends.diff().cpu())
    return of_ranks[group.rank].tolist(), of_ranks[:, group.rank].tolist()


def _exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    mine = placed(rows).contiguous()
    out = mine.new_empty(sum(received), *rows.shape[1:])
    distributed.all_to_all_single(out, mine, received, sent)
    return out.to(rows.device)
