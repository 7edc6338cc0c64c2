"""Requested rows split into held, cached and remote ones, with the position of each after the fetch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from khop.kernels.remote_rows import remote_rows


@dataclass(frozen=True, eq=False)
class RemoteRows:
    """Rows requested by id. One id range is held here, some other rows are cached, the rest is fetched."""

    held: int  # number of held rows
    kept: int  # number of cached rows
    places: Tensor  # int64: position of each requested row in the held, then cached, then fetched rows
    asked: Tensor  # int64: the ids to fetch, ascending, without duplicates

    @classmethod
    def of(cls, ids: Tensor, span: tuple[int, int], slots: Tensor | None = None, kept: int = 0) -> RemoteRows:
        """Split requested ids, where the ids in `span` (first, end) are held.

        `slots` gives the cache slot of each id, or -1 if it is not cached; None: `kept` is 0.
        """
        places, asked = remote_rows(ids, *span, slots=slots, kept=kept)
        return cls(span[1] - span[0], kept, places, asked)

    @property
    def num_remote(self) -> int:
        """The number of requested rows that are not held here."""
        return int((self.places >= self.held).sum())

    @property
    def num_kept(self) -> int:
        """The number of requested rows that are cached here."""
        return self.num_remote - int((self.places >= self.held + self.kept).sum()) if self.kept else 0
