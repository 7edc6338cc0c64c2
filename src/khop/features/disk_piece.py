"""Consecutive rows of a column in a file, some of them also in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.kernels.checks import check_ids
from khop.kernels.file_rows import RowFile, read_file_rows
from khop.kernels.id_slots import IdSlots
from khop.kernels.owners import remote_rows


@dataclass(frozen=True, eq=False)
class DiskPiece:
    """Rows of a column that are read from their file. Threads may share it."""

    file: RowFile
    slots: IdSlots | None = None  # of the rows in memory, by row of the file
    kept: Tensor | None = None  # (rows in memory, ...)

    @property
    def num_rows(self) -> int:
        """Number of rows in the file."""
        return self.file.num_rows

    def keeping(self, rows: Tensor, slots: IdSlots) -> DiskPiece:
        """Return the piece with some rows in memory: int64, ascending, and their slots."""
        return replace(self, slots=slots, kept=read_file_rows(self.file, rows))


Piece = Tensor | DiskPiece


def in_memory(
    pieces: Sequence[Piece], ids: Tensor, what: str, threads: int = 1
) -> tuple[list[Tensor], Tensor]:
    """Read the rows of `ids` that lie in files, each once; return tensors, and the place of each id in them.

    `ids`, int64, count the rows of all pieces. ValueError names an id that has no row.
    """
    firsts = [0]
    for piece in pieces:
        firsts.append(firsts[-1] + (piece.shape[0] if isinstance(piece, Tensor) else piece.num_rows))
    check_ids(ids, firsts[-1], what)
    tensors: list[Tensor] = []
    slots, kept = torch.full_like(ids, -1), 0
    for piece, first, end in zip(pieces, firsts, firsts[1:], strict=False):
        rows = piece if isinstance(piece, Tensor) else piece.kept
        if rows is None:
            continue
        here = ((ids >= first) & (ids < end)).nonzero().view(-1)
        places = ids[here] - first
        if isinstance(piece, DiskPiece) and piece.slots is not None:
            places = piece.slots.find(places)
        slots[here] = torch.where(places < 0, -1, places + kept)
        tensors.append(rows)
        kept += rows.shape[0]
    places, missing = remote_rows(ids, 0, 0, slots=slots, kept=kept)
    bounds = torch.searchsorted(missing, torch.tensor(firsts)).tolist()
    for number, piece in enumerate(pieces):
        if isinstance(piece, DiskPiece):
            of_piece = missing[bounds[number] : bounds[number + 1]] - firsts[number]
            tensors.append(read_file_rows(piece.file, of_piece, threads=threads))
    return tensors, places
