"""Queries for remote rows, and the rank that answers each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from khop.distributed.row_request import RowRequest, Type
from khop.partition.remote_rows import RemoteRows


@dataclass(frozen=True)
class RowQuery:
    """Requested rows of some columns of one type, and the rows among them to request from other ranks."""

    type_: Type
    columns: tuple[str, ...]
    rows: RemoteRows
    counts: tuple[int, ...]  # number of rows to request from each rank

    @classmethod
    def of(cls, type_: Type, columns: tuple[str, ...], rows: RemoteRows, bounds: Sequence[int]) -> RowQuery:
        """Build a query; rank q is asked for the ids from bound q up to bound q + 1."""
        counts = torch.searchsorted(rows.asked, torch.tensor(bounds)).diff()
        return cls(type_, columns, rows, tuple(counts.tolist()))

    def request(self, rank: int, first: int) -> RowRequest:
        """Return the request to a rank with rows that begin at id `first`."""
        begin = sum(self.counts[:rank])
        return RowRequest(
            self.type_, self.columns, self.rows.asked[begin : begin + self.counts[rank]] - first
        )
