"""Which rows of other ranks are wanted, and whom to ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from khop.distributed.row_request import RowRequest, Type
from khop.partition.remote_rows import RemoteRows


@dataclass(frozen=True)
class RowQuery:
    """Rows of some columns of one type that are wanted, and those of them that other ranks are asked for."""

    type_: Type
    columns: tuple[str, ...]
    rows: RemoteRows
    counts: tuple[int, ...]  # of the rows asked for, of each rank

    @classmethod
    def of(cls, type_: Type, columns: tuple[str, ...], rows: RemoteRows, bounds: Sequence[int]) -> RowQuery:
        """Rank q is asked for the ids from the q-th bound up to the next."""
        counts = torch.searchsorted(rows.asked, torch.tensor(bounds)).diff()
        return cls(type_, columns, rows, tuple(counts.tolist()))

    def request(self, rank: int, first: int) -> RowRequest:
        """What a rank is asked for, whose rows begin with this id."""
        begin = sum(self.counts[:rank])
        return RowRequest(
            self.type_, self.columns, self.rows.asked[begin : begin + self.counts[rank]] - first
        )
