"""Feature columns of this process: in memory, mapped from a graph folder, or read from disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.graph.features.store import FeatureStoreBase, Gathered, Rows, Tensors, Wanted
from khop.kernels.csc import ChosenRows, check_ids
from khop.kernels.gather import SMALL_DTYPES, GatheredColumn, RowFile, Shards, gather_columns, read_file_rows
from khop.kernels.owners import IdSlots, remote_rows
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema, Specs


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
        """Return the piece with some rows (int64, ascending) in memory, and their slots."""
        return replace(self, slots=slots, kept=read_file_rows(self.file, rows))


Piece = Tensor | DiskPiece


def in_memory(
    pieces: Sequence[Piece], ids: Tensor, what: str, threads: int = 1
) -> tuple[list[Tensor], Tensor]:
    """Read the rows of `ids` that are in files, each once; return tensors and each id's position in them.

    `ids`, int64, count the rows of all pieces. ValueError names an id without a row.
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


ColumnPieces = Mapping[str, Sequence[Piece]]  # by column of one type


@dataclass(frozen=True, eq=False)
class FeatureTable(FeatureStoreBase):
    """A feature store over whole columns, `type -> name -> (rows, ...)`, edge columns in CSC order.

    Gathering only reads, so threads may share a table. The result does not depend on `threads`.
    """

    columns: Tensors
    threads: int = 1  # per gather
    scales: Tensors = field(default_factory=dict)  # of quantized columns: float32, with the shape of a row
    pinned: frozenset[str] = frozenset()  # columns for the GPU in pinned host memory

    @classmethod
    def of(cls, schema: Schema, columns: Tensors, threads: int = 1) -> FeatureTable:
        """Create a table of a graph's columns, with the scales from its schema."""
        scales = {
            type_: {
                name: of_column
                for name, spec in specs.items()
                if spec.scales is not None
                and (column := columns.get(type_, {}).get(name)) is not None
                and (of_column := scales_of(spec, column.device)) is not None
            }
            for type_, specs in schema.columns.items()
        }
        return cls(columns, threads, scales)

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type; a quantized column has its scales."""
        return {
            t: {name: _spec_of(column, self.scales.get(t, {}).get(name)) for name, column in of_type.items()}
            for t, of_type in self.columns.items()
        }

    def output_device(self, type_: NodeType | EdgeType, column: str) -> torch.device:
        """Return the device of the column."""
        return self.columns[type_][column].device

    def local_rows(self, type_: NodeType | EdgeType) -> range:
        """Return all rows of a type."""
        return range(max((column.shape[0] for column in self.columns[type_].values()), default=0))

    def whole_columns(self) -> Tensors:
        """Return the columns."""
        return self.columns

    def with_columns(self, added: Tensors) -> FeatureTable:
        """Return a table with columns of additional types."""
        return replace(self, columns={**self.columns, **added}) if any(added.values()) else self

    def choosing(self, chosen: Mapping[NodeType | EdgeType, Tensor]) -> FeatureTable:
        """Return a table with some rows of some types, numbered from 0; columns are copied when read."""
        columns = {t: ChosenRows(self.columns.get(t, {}), at) for t, at in chosen.items()}
        return replace(self, columns={**self.columns, **columns})

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather the requested rows, in the order of the ids; ValueError names a missing column."""
        gathered: Gathered = {}
        for type_, rows in wanted.items():
            if type_ not in self.columns:
                raise ValueError(f"no columns of type {type_!r}; there are columns of {list(self.columns)}")
            columns = [self.column(type_, name, rows) for name in rows.columns]
            found = gather_columns(columns, rows.ids, threads=self.threads)
            gathered[type_] = dict(zip(rows.columns, found, strict=True))
        return gathered

    def with_threads(self, threads: int) -> FeatureTable:
        """Return a table of the same columns that uses up to `threads` threads for each gather."""
        return replace(self, threads=threads)

    def column(self, type_: NodeType | EdgeType, name: str, rows: Rows) -> GatheredColumn:
        """Describe how to gather one of the columns of `rows`."""
        columns = self.columns[type_]
        if name not in columns:
            raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(columns)}")
        column = column_of(columns[name], type_, name, rows, self.scales.get(type_, {}).get(name))
        return replace(column, is_pinned=True) if name in self.pinned else column


NO_COLUMNS = FeatureTable({})  # for a graph without columns


def column_of(
    table: Tensor | Shards | Sequence[Tensor],
    type_: NodeType | EdgeType,
    name: str,
    rows: Rows,
    scales: Tensor | None,
) -> GatheredColumn:
    """Describe a column to gather: a table, or consecutive pieces of rows."""
    dtype = (table[0] if isinstance(table, Sequence) else table).dtype
    is_narrow = dtype in SMALL_DTYPES and (dtype.is_floating_point or scales is not None)
    widened = name in rows.as_float32 and is_narrow
    what = f"column {name!r} of {type_!r}: row"
    return GatheredColumn(table, what, rows.limits.get(name), widened, scales if widened else None)


def _spec_of(column: Tensor, scales: Tensor | None) -> ColumnSpec:
    dtype, shape = str(column.dtype).removeprefix("torch."), tuple(column.shape[1:])
    return ColumnSpec(dtype, shape, scales=None if scales is None else tuple(scales.flatten().tolist()))


def scales_of(spec: ColumnSpec, device: torch.device | str = "cpu") -> Tensor | None:
    """Return the scales of a quantized column: float32, with the shape of a row; None for other columns."""
    if spec.scales is None:
        return None
    return torch.tensor(spec.scales, dtype=torch.float32, device=device).view(spec.shape)


def read_rows(
    pieces: ColumnPieces,
    specs: Mapping[str, ColumnSpec],
    type_: NodeType | EdgeType,
    rows: Rows,
    threads: int = 1,
) -> dict[str, Tensor]:
    """Gather columns of one type as a feature store does; rows are numbered over all pieces."""
    columns = {}
    for name in rows.columns:
        found = _tensors(pieces[name])
        if found is not None:
            columns[name] = column_of(found, type_, name, rows, scales_of(specs[name]))
    gathered = dict(
        zip(columns, gather_columns(list(columns.values()), rows.ids, threads=threads), strict=True)
    )
    for name in rows.columns:
        if name not in columns:
            ids = rows.ids[: rows.limits.get(name)]
            found, places = in_memory(pieces[name], ids, f"column {name!r} of {type_!r}: row", threads)
            column = replace(column_of(found, type_, name, rows, scales_of(specs[name])), count=None)
            gathered |= {name: gather_columns([column], places, threads=threads)[0]}
    return {name: gathered[name] for name in rows.columns}


def read_into(pieces: ColumnPieces, ids: Tensor, out: Mapping[str, Tensor]) -> None:
    """Copy rows of some columns into `out`, as stored."""
    columns = []
    for name, room in out.items():
        what, found = f"column {name!r}: row", _tensors(pieces[name])
        if found is not None:
            columns.append(GatheredColumn(found, what, out=room))
        else:
            found, places = in_memory(pieces[name], ids, what)
            gather_columns([GatheredColumn(found, what, out=room)], places)
    gather_columns(columns, ids)


def _tensors(pieces: Sequence[Piece]) -> list[Tensor] | None:
    """Return the pieces if all are in memory or mapped."""
    found = [piece for piece in pieces if not isinstance(piece, DiskPiece)]
    return found if len(found) == len(pieces) else None
