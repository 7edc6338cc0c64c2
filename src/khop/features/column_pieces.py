"""Columns that lie in pieces, whose rows follow one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from khop.features.store import Rows
from khop.features.table import column_of, scales_of
from khop.kernels.gather import Column, gather_columns
from khop.schema import ColumnSpec, EdgeType, NodeType

ColumnPieces = Mapping[str, Sequence[Tensor]]  # of each column of a type


def read_rows(
    pieces: ColumnPieces,
    specs: Mapping[str, ColumnSpec],
    type_: NodeType | EdgeType,
    rows: Rows,
    threads: int = 1,
) -> dict[str, Tensor]:
    """As a feature store gathers columns of one type, by the number of a row among those of all pieces."""
    columns = [column_of(pieces[name], type_, name, rows, scales_of(specs[name])) for name in rows.columns]
    return dict(zip(rows.columns, gather_columns(columns, rows.ids, threads=threads), strict=True))


def read_into(pieces: ColumnPieces, ids: Tensor, out: Mapping[str, Tensor]) -> None:
    """Put the rows of some columns where they are wanted, as they are stored."""
    gather_columns(
        [Column(pieces[name], f"column {name!r}: row", out=room) for name, room in out.items()], ids
    )
