"""Rows of pieces in files and in memory are those of all pieces, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.features.table import DiskPiece, Piece, in_memory, read_into
from khop.kernels.gather import RowFile
from khop.kernels.owners import IdSlots

WIDTH = 3


def on_disk(path: Path, rows: torch.Tensor) -> DiskPiece:
    path.write_bytes(rows.numpy().tobytes())
    return DiskPiece(RowFile.open(path, 0, rows.shape[0], (WIDTH,), rows.dtype))


@given(data=st.data())
def test_rows_are_those_of_all_pieces(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    home, pieces, tensors = tmp_path_factory.mktemp("pieces"), list[Piece](), []
    for number, count in enumerate(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))):
        rows = torch.randint(1 << 30, (count, WIDTH), generator=torch.Generator().manual_seed(number))
        tensors.append(rows)
        if data.draw(st.booleans()):
            pieces.append(rows)
            continue
        piece = on_disk(home / f"{number}", rows)
        if count and data.draw(st.booleans()):
            kept = torch.tensor(sorted(data.draw(st.sets(st.integers(0, count - 1)))), dtype=torch.int64)
            piece = piece.keeping(kept, IdSlots.of(kept, count))
        pieces.append(piece)
    whole = torch.cat(tensors)
    last = whole.shape[0] - 1
    wanted = st.lists(st.integers(0, last), max_size=60) if last >= 0 else st.just([])
    ids = torch.tensor(data.draw(wanted), dtype=torch.int64)
    if any(isinstance(piece, DiskPiece) for piece in pieces):
        found, places = in_memory(pieces, ids, "row")
        assert torch.equal(torch.cat(found)[places], whole[ids])
    out = torch.empty((ids.numel(), WIDTH), dtype=torch.int64)
    read_into({"x": pieces}, ids, {"x": out})
    assert torch.equal(out, whole[ids])


@pytest.mark.parametrize("wrong", [-1, 12])
def test_ids_without_a_row_are_named(tmp_path: Path, wrong: int) -> None:
    pieces = [
        torch.zeros((5, WIDTH), dtype=torch.int64),
        on_disk(tmp_path / "x", torch.zeros((7, WIDTH)).long()),
    ]
    with pytest.raises(ValueError, match=rf"column 'x': row .*{wrong}"):
        in_memory(pieces, torch.tensor([0, wrong]), "column 'x': row")
