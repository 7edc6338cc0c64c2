"""Gather of rows by id, from memory or from files.

Threads take turns at a disk, so that the rows needed first are read first.
"""

from __future__ import annotations

import math
import os
import threading
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor

import khop._core as _core
from khop.errors import REMEDY
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import check_ids
from khop.kernels.memory import empty_rows, pooled
from khop.kernels.philox import signed

SMALL_DTYPES = (torch.float16, torch.bfloat16, torch.int8, torch.uint8)


def gather(table: Tensor, ids: Tensor, *, out: Tensor | None = None, threads: int = 1) -> Tensor:
    """Return `table[ids]`: the rows of `table` (N, ...) at int64 `ids`, in their order, duplicates included.

    Any dtype. The table is in memory or in a mapped file. With `out`, the rows are written to it and `out`
    is returned; it must not overlap the table. Not differentiable.

    With ids on a GPU, the table must be on the GPU or in pinned memory, and may have padded rows. The result
    then has padded rows. An id outside the table gives zeros, because an error would require a
    synchronization.
    """
    return gather_columns([GatheredColumn(table, out=out)], ids, threads=threads)[0]


@dataclass(frozen=True)
class Copies:
    """Copies of some rows of a table on the device that reads them."""

    slots: Tensor  # int32 (N), the row in `rows` with the copy of each row, or -1
    rows: Tensor  # (slots, ...), dtype and shape of rows as in the table


@dataclass(frozen=True, eq=False)
class Shards:
    """A table split evenly over the memory of several GPUs, read by kernels of one GPU.

    The last piece may have fewer rows. All have the same pitch. The table has those attributes of a tensor
    that gathers and draws read.
    """

    pieces: tuple[Tensor, ...]
    # int64 (2 + pieces) on the reading GPU: rows of each piece but the last, the bits of 2^64 - 1 divided by
    # them, then the distance of each piece from the first, in units of 16 bytes
    layout: Tensor

    @classmethod
    def of(cls, pieces: Sequence[Tensor], device: torch.device) -> Shards:
        """Return the table of some pieces; ValueError if their addresses or pitches do not fit."""
        first = pieces[0]
        distances = [piece.data_ptr() - first.data_ptr() if piece.numel() else 0 for piece in pieces]
        alike = {(piece.dtype, piece.shape[1:], piece.stride()) for piece in pieces if piece.shape[0] > 1}
        if len(alike) > 1 or any(distance % 16 for distance in distances):
            raise ValueError(
                "shards: must have one dtype, shape and pitch, and begin at multiples of 16 bytes"
            )
        if any(piece.shape[0] != first.shape[0] for piece in pieces[:-1]):
            raise ValueError("shards: all but the last must have the same number of rows")
        rows = max(1, first.shape[0])
        layout = [rows, signed(((1 << 64) - 1) // rows), *(distance // 16 for distance in distances)]
        return cls(tuple(pieces), torch.tensor(layout, dtype=torch.int64, device=device))

    @property
    def device(self) -> torch.device:
        """The GPU whose kernels read the table."""
        return self.layout.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the numbers."""
        return self.pieces[0].dtype

    @property
    def shape(self) -> torch.Size:
        """(rows of all pieces, ...)."""
        return torch.Size([sum(piece.shape[0] for piece in self.pieces), *self.pieces[0].shape[1:]])

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of numbers."""
        return self.shape.numel()

    def is_contiguous(self) -> bool:
        """Return True: kernels read the pieces where they are."""
        return True

    def contiguous(self) -> Shards:
        """Return this table."""
        return self

    def to(self, device: torch.device) -> Shards:
        """Return this table, which kernels of the device read; ValueError for another device."""
        if device != self.device:
            raise ValueError(f"shards: are read by kernels of {self.device}, not of {device}")
        return self

    def __getitem__(self, ids: Tensor) -> Tensor:
        """Return rows by int64 ids of any shape, as for a tensor."""
        (rows,) = gather_columns([GatheredColumn(self)], ids.reshape(-1))
        return rows.view(*ids.shape, *self.shape[1:])


def kernel_operands(table: Tensor | Shards | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the first piece of a table and its layout, or a tensor and None, as kernels take them."""
    return (table.pieces[0], table.layout) if isinstance(table, Shards) else (table, None)


@dataclass(frozen=True)
class GatheredColumn:
    """One of several tables to gather by the same ids."""

    table: Tensor | Sequence[Tensor] | Shards  # (N, ...), or consecutive pieces of it
    what: str = "row"  # the name of the ids in errors
    count: int | None = None  # use only the first `count` ids
    as_float32: bool = False  # convert from float16, bfloat16, int8 or uint8
    scales: Tensor | None = None  # float32, shape of a row: multiply each row by it, as float32
    out: Tensor | None = None  # write the rows here instead of into new memory
    copies: Copies | None = None  # copies on the device, read instead where they exist
    is_pinned: bool = False  # host memory that a GPU reads, even if it is a CUDA tensor for torch

    @property
    def shards(self) -> Shards | None:
        """The table if it is sharded, else None."""
        rows = self.table
        return rows if isinstance(rows, Shards) else None

    @property
    def pieces(self) -> Sequence[Tensor]:
        """The pieces of the table, at least one."""
        if isinstance(self.table, Shards):
            return self.table.pieces
        return (self.table,) if isinstance(self.table, Tensor) else self.table

    @property
    def num_rows(self) -> int:
        """Number of rows of all pieces."""
        return sum(piece.shape[0] for piece in self.pieces)


def gather_columns(
    columns: Sequence[GatheredColumn], ids: Tensor, *, threads: int = 1, live: Tensor | None = None
) -> list[Tensor]:
    """Gather every column by the same ids in one pass over them, as `gather` does.

    With `live`, one int32 or int64 on the device of the ids, only the first `live` ids are read, and later
    rows are 0. Does not synchronize with the device.
    """
    wanted = [ids if column.count is None else ids[: column.count] for column in columns]
    engines = [_check_column(column, rows) for column, rows in zip(columns, wanted, strict=True)]
    if Engine.TRITON in engines:
        return [_column_by_triton(column, rows, live) for column, rows in zip(columns, wanted, strict=True)]
    if live is not None or any(column.copies for column in columns):
        return [column_reference(column, rows, live) for column, rows in zip(columns, wanted, strict=True)]
    if Engine.TORCH in engines:
        for column, rows in zip(columns, wanted, strict=True):
            check_ids(rows, column.num_rows, column.what)
        return [column_reference(column, rows) for column, rows in zip(columns, wanted, strict=True)]
    results, arguments = [], []
    for column, rows in zip(columns, wanted, strict=True):
        pieces = [piece.detach() for piece in column.pieces]
        width, dtype = math.prod(pieces[0].shape[1:]), pieces[0].dtype
        if width == 0:  # the core does not read such rows, and does not check their ids
            check_ids(rows, column.num_rows, column.what)
        out = column.out
        if out is None:
            out = pooled((rows.numel(), *pieces[0].shape[1:]), torch.float32 if column.as_float32 else dtype)
        results.append(out)
        if column.as_float32:
            scales = None if column.scales is None else column.scales.detach().flatten().contiguous()
            arguments.append((pieces, width, scales, rows.numel(), out))
        else:
            as_bytes = [_as_bytes(piece) for piece in pieces]
            arguments.append((as_bytes, width * dtype.itemsize, None, rows.numel(), _as_bytes(out)))
    try:
        _core.gather_columns(arguments, ids.contiguous(), threads)
    except ValueError:
        for column, rows in zip(columns, wanted, strict=True):
            check_ids(rows, column.num_rows, column.what)  # the same error, with the name of the ids
        raise
    return results


def column_reference(column: GatheredColumn, ids: Tensor, live: Tensor | None = None) -> Tensor:
    """Return the rows of a column in plain torch, on any device; ids must be in range up to `live`."""
    pieces = [piece.to(ids.device) for piece in column.pieces]  # shards are on other devices
    table = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    if column.copies is not None:
        slots = column.copies.slots
        table = table.clone()
        table[slots >= 0] = column.copies.rows[slots[slots >= 0]]
    if live is None:
        return _rows_of(column, table, ids)
    is_live = torch.arange(ids.numel(), device=ids.device) < live
    rows = _rows_of(column, table, ids.where(is_live, 0))
    rows[~is_live] = 0
    return rows


def _rows_of(column: GatheredColumn, table: Tensor, ids: Tensor) -> Tensor:
    rows = widened(column, table.detach().index_select(0, ids))
    return rows if column.out is None else column.out.copy_(rows)


def widened(column: GatheredColumn, rows: Tensor) -> Tensor:
    """Convert stored rows to the dtype that a gather of the column returns, times its scales."""
    if not column.as_float32:
        return rows
    return rows.float() if column.scales is None else rows.float() * column.scales


def _column_by_triton(column: GatheredColumn, ids: Tensor, live: Tensor | None) -> Tensor:
    from khop.kernels.triton.gather import gather as by_triton

    pieces = [piece.detach() for piece in column.pieces]
    shards = column.shards
    table = pieces[0] if len(pieces) == 1 or shards is not None else torch.cat(pieces)
    slots, copies = (None, None) if column.copies is None else (column.copies.slots, column.copies.rows)
    out = column.out
    if out is None:
        dtype = torch.float32 if column.as_float32 else table.dtype
        out = empty_rows(ids.numel(), tuple(table.shape[1:]), dtype, ids.device)
    by_triton(
        *(table, ids.contiguous(), out),
        scales=column.scales,
        count=live,
        slots=slots,
        cache=copies,
        is_pinned=column.is_pinned,
        layout=None if shards is None else shards.layout,
        num_rows=column.num_rows,
    )
    return out


def _check_column(column: GatheredColumn, ids: Tensor) -> Engine:
    first = column.pieces[0]
    for piece in column.pieces:
        near = piece.device if column.shards is None else ids.device
        by = _check(piece, ids, column.out, torch.float32 if column.as_float32 else piece.dtype, near)
        if piece.dtype != first.dtype or piece.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"pieces of a table are {first.dtype} {tuple(first.shape)} and {piece.dtype} "
                f"{tuple(piece.shape)}: rows must have the same dtype and shape"
            )
    if column.as_float32:
        _check_small(first, column.scales)
    return by


def _check(
    table: Tensor, ids: Tensor, out: Tensor | None, out_dtype: torch.dtype, near: torch.device
) -> Engine:
    """Return the engine for the ids; ValueError if table, ids and out do not fit."""
    by = engine(ids.device)
    # Kernels read rows at any pitch.
    if table.dim() == 0 or not (table[:1] if by is Engine.TRITON else table).is_contiguous():
        raise ValueError(
            f"table {tuple(table.shape)} with strides {table.stride()}: rows must be "
            "contiguous; pass table.contiguous()"
        )
    if ids.dtype != torch.int64:
        raise ValueError(f"ids are {ids.dtype}: must be int64; pass ids.long()")
    if ids.dim() != 1:
        raise ValueError(f"row ids are {ids.dtype} {tuple(ids.shape)}: must be int64 (n)")
    if ids.device != near and not (by is Engine.TRITON and table.is_pinned()):
        raise ValueError(f"ids are on {ids.device}, but the table is on {table.device}: move one of them")
    if out is None:
        return by
    is_dense = (out[:1] if by is Engine.TRITON else out).is_contiguous()
    given = (tuple(out.shape), out.dtype, out.device, is_dense)
    wanted = ((ids.numel(), *table.shape[1:]), out_dtype, ids.device, True)
    if given != wanted:
        raise ValueError(f"out has (shape, dtype, device, contiguous) {given}: must have {wanted}")
    return by


def _check_small(table: Tensor, scales: Tensor | None) -> None:
    if table.dtype not in SMALL_DTYPES:
        raise ValueError(f"table is {table.dtype}: must be one of {SMALL_DTYPES} to become float32")
    if scales is None:
        return
    given, wanted = (scales.shape, scales.dtype), (table.shape[1:], torch.float32)
    if given != wanted:
        raise ValueError(f"scales are {given}: must be {wanted}, one per column")


def _as_bytes(tensor: Tensor) -> Tensor:
    # The core copies rows as bytes, because DLPack lacks some dtypes of torch. `as_strided`, because a single
    # row of a wider table is contiguous for torch although it has strides.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


PLACE: ContextVar[int] = ContextVar("PLACE", default=0)
"""Position of the work of this thread in the order of use; the lowest goes first."""


class Turns:
    """A mutex that admits waiting threads by the lowest PLACE."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[int] = []  # places, ascending
        self._is_taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and keep it until the block ends."""
        self._begin(PLACE.get())
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _begin(self, place: int) -> None:
        with self._changed:
            insort(self._waiting, place)
            try:
                self._changed.wait_for(lambda: not self._is_taken and self._waiting[0] == place)
                self._is_taken = True
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()  # after Ctrl-C, another thread may be first


WINDOW = 256  # prefetched reads: enough to keep a disk busy, too few to evict pages before they are read
READERS = 4  # threads per call: while one waits for a core, others keep the disk busy
TURN_ROWS = 1 << 16  # rows that a call reads before another call's turn
THREADS = 32  # threads for file systems that ignore prefetches
# File systems that ignore prefetches, or make a round trip for each; magic numbers of statfs(2).
IGNORES_PREFETCH = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x65735546: "fuse",
    0x794C7630: "overlay",
    0x01021997: "9p",
    0x00C36400: "ceph",
}


@dataclass(frozen=True, eq=False)
class RowFile:
    """A table in an open file that is read by rows. Threads may share it.

    The file is open as long as the object exists, so a removed file can still be read.
    """

    path: Path
    first_byte: int  # offset of the first row
    num_rows: int
    shape: tuple[int, ...]  # of a row
    dtype: torch.dtype
    descriptor: int
    can_prefetch: bool  # prefetches work; False: several threads read instead
    turns: Turns = field(default_factory=Turns, repr=False)  # of the calls that read

    @classmethod
    def open(
        cls,
        path: Path,
        first_byte: int,
        num_rows: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        file_system: Callable[[int], int] = _core.file_system_type,
    ) -> RowFile:
        """Open a file; OSError if that fails. `file_system` returns the file system of a descriptor."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _core.expect_scattered_reads(descriptor)
        can_prefetch = file_system(descriptor) not in IGNORES_PREFETCH
        opened = cls(path, first_byte, num_rows, shape, dtype, descriptor, can_prefetch)
        finalize(opened, os.close, descriptor)
        return opened

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_file_rows(file: RowFile, ids: Tensor, *, threads: int = 1) -> Tensor:
    """Return the stored rows (ids, ...) of int64 ids, which must be ascending and distinct.

    Rows on the same page are read together, and pages are prefetched. Calls for one file take turns of some
    rows each, so that the disk reads for the batch that is needed first instead of for several at once.
    ValueError names the first row that cannot be read.
    """
    rows = pooled((ids.numel(), *file.shape), file.dtype)
    window = WINDOW if file.can_prefetch else 0
    threads = max(threads, READERS if file.can_prefetch else THREADS)
    place = (file.descriptor, file.first_byte, file.row_bytes, file.num_rows)
    for some, to in zip(ids.contiguous().split(TURN_ROWS), rows.split(TURN_ROWS), strict=True):
        with file.turns.taken():
            row, error = _core.read_file_rows(*place, some, window, threads, to.view(-1).view(torch.uint8))
        if row >= 0:
            raise _unreadable(file, row, error)
    return rows


def _unreadable(file: RowFile, row: int, error: int) -> ValueError:
    why = os.strerror(error) if error else "the file ends before it, but was complete when it was opened"
    return ValueError(f"{file.path}: row {row:,} of {file.num_rows:,} cannot be read: {why}; {REMEDY}")
