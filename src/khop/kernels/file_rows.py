"""Rows of a table in a file, read by id without mapping the file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor

import khop._core as _core
from khop.errors import REMEDY
from khop.kernels.memory import pooled
from khop.kernels.turns import Turns

WINDOW = (
    256  # reads announced ahead; a disk then has enough of them to work on, and no page is dropped unread
)
READERS = 4  # threads of one call: while one waits for a core, the others keep the disk busy
TURN_ROWS = 1 << 16  # read before another call may have its turn
THREADS = 32  # that wait for a file system which ignores announcements
# File systems that ignore announcements, or answer each by a round trip: as statfs(2) names them.
DEAF = {
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
    """A table in an open file, read row by row. Threads may share it.

    The file is open as long as the object lives, so a file that is removed meanwhile keeps its rows.
    """

    path: Path
    first_byte: int  # where the first row begins
    num_rows: int
    shape: tuple[int, ...]  # of a row
    dtype: torch.dtype
    descriptor: int
    heeds_announcements: bool  # False: several threads read instead
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
        """Open a file; OSError if that cannot be done. `file_system` names its file system by descriptor."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _core.expect_scattered_reads(descriptor)
        heeds = file_system(descriptor) not in DEAF
        opened = cls(path, first_byte, num_rows, shape, dtype, descriptor, heeds)
        finalize(opened, os.close, descriptor)
        return opened

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_file_rows(file: RowFile, ids: Tensor, *, threads: int = 1) -> Tensor:
    """Return the rows of `ids`, int64, ascending, each once: as they are stored, (ids, ...).

    Rows on the same page are read at once, and pages are announced to the disk ahead. Calls for one file take
    turns of some rows each: the disk works for the batch that is needed first, and not for several at once.
    ValueError names the first row that cannot be read.
    """
    rows = pooled((ids.numel(), *file.shape), file.dtype)
    window = WINDOW if file.heeds_announcements else 0
    threads = max(threads, READERS if file.heeds_announcements else THREADS)
    place = (file.descriptor, file.first_byte, file.row_bytes, file.num_rows)
    for some, to in zip(ids.contiguous().split(TURN_ROWS), rows.split(TURN_ROWS), strict=True):
        with file.turns.taken():
            row, error = _core.read_file_rows(*place, some, window, threads, to.view(-1).view(torch.uint8))
        if row >= 0:
            raise _unreadable(file, row, error)
    return rows


def read_file_rows_reference(file: RowFile, ids: Tensor) -> Tensor:
    """The same as `read_file_rows`, one read per row."""
    rows = torch.empty((ids.numel(), *file.shape), dtype=file.dtype)
    for at, row in enumerate(ids.tolist()):
        found = os.pread(file.descriptor, file.row_bytes, file.first_byte + row * file.row_bytes)
        if len(found) < file.row_bytes:
            raise _unreadable(file, row, 0)
        rows[at] = torch.frombuffer(bytearray(found), dtype=file.dtype).view(file.shape)
    return rows


def _unreadable(file: RowFile, row: int, error: int) -> ValueError:
    why = os.strerror(error) if error else "the file ends before it, though it was whole when it was opened"
    return ValueError(f"{file.path}: row {row:,} of {file.num_rows:,} cannot be read: {why}; {REMEDY}")
