"""Which rows of other ranks are wanted, and whom to ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from khop.distributed.row_request import Request, Type
from khop.partition.elsewhere import Elsewhere


@dataclass(frozen=True)
class Question:
    """Rows of some columns of one type that are wanted, and those of them that other ranks are asked for."""

    type_: Type
    columns: tuple[str, ...]
    rows: Elsewhere
    counts: tuple[int, ...]  # of the rows asked for, of each rank

    @classmethod
    def of(cls, type_: Type, columns: tuple[str, ...], rows: Elsewhere, bounds: Sequence[int]) -> Question:
        """Rank q is asked for the ids from the q-th bound up to the next."""
        counts = torch.searchsorted(rows.asked, torch.tensor(bounds)).diff()
        return cls(type_, columns, rows, tuple(counts.tolist()))

    def request(self, rank: int, first: int) -> Request:
        """What a rank is asked for, whose rows begin with this id."""
        begin = sum(self.counts[:rank])
        return Request(self.type_, self.columns, self.rows.asked[begin : begin + self.counts[rank]] - first)
