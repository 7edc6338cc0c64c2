"""Rows of a stored array, compared with its checksum while they are read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.errors import REMEDY
from khop.graph.npy import ArrayEntry, map_numpy

Array = npt.NDArray[Any]


class CheckedRows:
    """A mapped array that is read once, from its first row to its last.

    The read that returns the last row raises ValueError if the file differs from its checksum, so that
    damage is never copied under a new checksum.
    """

    def __init__(self, path: Path, entry: ArrayEntry) -> None:
        self._path, self._entry = path, entry
        self._values = map_numpy(path, entry)
        self._read = 0
        with path.open("rb") as file:
            self._digest = hashlib.sha256(file.read(entry.bytes - entry.data_bytes))

    def __len__(self) -> int:
        return int(self._entry.shape[0])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self._entry.shape[1:], dtype=np.int64)) * self._values.itemsize

    def read(self, first: int, last: int) -> Array:
        """Return rows `first` to `last` - 1; `first` is where the last call ended."""
        assert first == self._read, (first, self._read)
        rows = self._values[first:last]
        self._digest.update(rows.reshape(-1).view(np.uint8).data if rows.size else b"")
        self._read = last
        if last == len(self) and self._digest.hexdigest() != self._entry.sha256:
            raise ValueError(f"{self._path}: checksum differs from graph.json; {REMEDY}")
        return rows
