"""Which of the rows that are wanted a process does not have, and where each is once they are here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from khop.kernels.remote_rows import remote_rows


@dataclass(frozen=True, eq=False)
class RemoteRows:
    """Rows by ids, of which one stretch is held here, some others are kept here, and the rest asked for."""

    held: int  # how many rows are held
    kept: int  # how many others are kept
    places: Tensor  # int64, of each wanted row: its number among those held, kept and asked for
    asked: Tensor  # int64: the ids asked for, ascending, each once

    @classmethod
    def of(cls, ids: Tensor, span: tuple[int, int], slots: Tensor | None = None, kept: int = 0) -> RemoteRows:
        """Of some ids where those from the first of `span` up to its second are held.

        Each id's slot is that of the row that is kept of it, -1 where none is; None: `kept` is 0.
        """
        places, asked = remote_rows(ids, *span, slots=slots, kept=kept)
        return cls(span[1] - span[0], kept, places, asked)

    @property
    def num_remote(self) -> int:
        """How many of the wanted rows are not held here."""
        return int((self.places >= self.held).sum())

    @property
    def num_kept(self) -> int:
        """How many of these are kept here."""
        return self.num_remote - int((self.places >= self.held + self.kept).sum()) if self.kept else 0
