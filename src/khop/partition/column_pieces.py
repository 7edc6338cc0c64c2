"""The columns of several parts as pieces: mapped, in memory, or read from disk."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from khop.features.cache_plan import CachePlan
from khop.features.disk_piece import DiskPiece, Piece
from khop.features.table import ColumnPieces
from khop.graph.feature_columns import copied_columns, disk_columns, feature_columns
from khop.graph.folder import GraphFolder
from khop.kernels.id_slots import IdSlots
from khop.partition.parts_folder import PartsFolder
from khop.schema import EdgeType, NodeType

Pieces = Mapping[NodeType | EdgeType, ColumnPieces]


def column_pieces(folder: PartsFolder, places: Mapping[str, str], room_bytes: int) -> Pieces:
    """Return the columns that all open parts have, with one piece per part, each where `places` says.

    Of the other columns, the largest stay on disk if the parts do not fit in `room_bytes`.
    """
    specs, room_bytes = folder.schema.columns, room_bytes // max(len(folder.parts), 1)
    of_parts = [_of_part(part, places, room_bytes) for part in folder.parts]
    return {
        t: {n: tuple(of[t][n] for of in of_parts) for n in specs[t] if all(n in of[t] for of in of_parts)}
        for t in specs
    }


def is_on_disk(pieces: ColumnPieces) -> bool:
    """Return True if rows of some column of a type are read from disk."""
    return any(isinstance(piece, DiskPiece) for of_column in pieces.values() for piece in of_column)


def keeping(pieces: Pieces, firsts: Mapping[NodeType, int], plan: CachePlan) -> Pieces:
    """Return pieces that keep the rows of a plan in memory, of columns on disk.

    The pieces of a type begin at an id in `firsts`. Ids of the plan that they lack are left out.
    """
    return {
        t: _kept(of_type, firsts[t], plan, t) if isinstance(t, str) and t in plan.ids else of_type
        for t, of_type in pieces.items()
    }


def _of_part(
    part: GraphFolder, places: Mapping[str, str], room_bytes: int
) -> Mapping[NodeType | EdgeType, Mapping[str, Piece]]:
    files = disk_columns(part, places, room_bytes)
    columns = copied_columns(feature_columns(part, room_bytes), places)
    return {
        t: {n: DiskPiece(files[t][n]) if n in files[t] else column for n, column in of_type.items()}
        for t, of_type in columns.items()
    }


def _kept(pieces: ColumnPieces, first: int, plan: CachePlan, node_type: NodeType) -> ColumnPieces:
    names = [n for n in plan.columns[node_type] if is_on_disk({n: pieces.get(n, ())})]
    kept: dict[str, list[Piece]] = {name: list(of) for name, of in pieces.items()}
    ids = plan.ids[node_type]
    for number in range(max((len(pieces[name]) for name in names), default=0)):
        count = _rows_of(pieces[names[0]][number])
        begin, end = torch.searchsorted(ids, torch.tensor([first, first + count])).tolist()
        rows = ids[begin:end] - first
        slots = IdSlots.of(rows, count)
        for name in names:
            piece = pieces[name][number]
            if isinstance(piece, DiskPiece):
                kept[name][number] = piece.keeping(rows, slots)
        first += count
    return kept


def _rows_of(piece: Piece) -> int:
    return piece.num_rows if isinstance(piece, DiskPiece) else piece.shape[0]
