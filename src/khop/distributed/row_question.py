"""Which of the wanted rows lie elsewhere, whom to ask for them, and where each answer goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.distributed.row_request import Request, Type


@dataclass(frozen=True)
class Question:
    """Rows of some columns of one type that this rank does not hold. Positions are among the wanted ids."""

    type_: Type
    columns: tuple[str, ...]
    kept_at: Tensor  # int64: positions of rows that are kept here
    slots: Tensor  # int64: of these
    asked_at: Tensor  # int64: positions of the rows that are asked for, by ascending id
    number: Tensor | None  # int64: of each of these, which of `ids` it is; None: they are the ids, in order
    ids: Tensor  # int64: asked for, ascending, each once
    counts: tuple[int, ...]  # of them, of each rank

    def request(self, rank: int, first: int) -> Request:
        """What a rank is asked for, whose rows begin with this id."""
        begin = sum(self.counts[:rank])
        return Request(self.type_, self.columns, self.ids[begin : begin + self.counts[rank]] - first)

    def place(self, rank: int, rows: Tensor, out: Tensor) -> None:
        """Put a rank's answer, a row per id that it was asked for, where the rows are wanted."""
        begin = sum(self.counts[:rank])
        end = begin + self.counts[rank]
        if self.number is not None:
            first, last = torch.searchsorted(self.number, torch.tensor([begin, end])).tolist()
            rows = rows.index_select(0, self.number[first:last] - begin)
            begin, end = first, last
        out.index_copy_(0, self.asked_at[begin:end], rows)


def question(
    type_: Type,
    columns: tuple[str, ...],
    elsewhere: Tensor,
    ids: Tensor,
    bounds: Sequence[int],
    slots: Tensor,
) -> Question:
    """The question for the ids that lie elsewhere, at these positions, of which some are kept at a slot.

    Rank q answers for ids from the q-th bound up to the next; slots are -1 where nothing is kept.
    """
    kept = slots >= 0
    asked_at, asked = elsewhere[~kept], ids[~kept]
    asked, order = asked.sort()
    asked_at = asked_at[order]
    distinct, number = torch.unique_consecutive(asked, return_inverse=True)
    counts = torch.searchsorted(distinct, torch.tensor(bounds)).diff()
    return Question(
        type_,
        columns,
        elsewhere[kept],
        slots[kept],
        asked_at,
        None if distinct.numel() == asked.numel() else number,
        distinct,
        tuple(counts.tolist()),
    )
