"""Columns stored in consecutive pieces of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from khop.features.store import Rows
from khop.features.table import column_of, scales_of
from khop.kernels.gather import Column, gather_columns
from khop.schema import ColumnSpec, EdgeType, NodeType

ColumnPieces = Mapping[str, Sequence[Tensor]]  # by column of one type


def read_rows(
    pieces: ColumnPieces,
    specs: Mapping[str, ColumnSpec],
    type_: NodeType | EdgeType,
    rows: Rows,
    threads: int = 1,
) -> dict[str, Tensor]:
    """Gather columns of one type as a feature store does; rows are numbered over all pieces."""
    columns = [column_of(pieces[name], type_, name, rows, scales_of(specs[name])) for name in rows.columns]
    return dict(zip(rows.columns, gather_columns(columns, rows.ids, threads=threads), strict=True))


def read_into(pieces: ColumnPieces, ids: Tensor, out: Mapping[str, Tensor]) -> None:
    """Copy rows of some columns into `out`, as they are stored."""
    gather_columns(
        [Column(pieces[name], f"column {name!r}: row", out=room) for name, room in out.items()], ids
    )
