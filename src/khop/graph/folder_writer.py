"""Arrays written into a graph folder in pieces, with their entries for graph.json."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.atomic import Meter, naming
from khop.graph.folder import GraphFolder
from khop.graph.npy import (
    STORED,
    ArrayEntry,
    array_header,
    file_checksum,
    flush,
    unchecked_entry,
    write_array,
)
from khop.graph.snapshots import link_file, link_files


@dataclass(frozen=True)
class FolderWriter:
    """Writer of arrays into a folder; it collects their entries for graph.json."""

    folder: Path
    meter: Meter
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)

    def array(
        self, file: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[npt.NDArray[Any]]
    ) -> ArrayEntry:
        """Write chunks of rows as one array and flush it to disk."""
        entry = write_array(
            self.folder / file, dtype, shape, chunks, lambda written: self.meter.at(file, written)
        )
        self.arrays[file] = entry
        return entry

    def open_array(self, file: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        """Begin an array that is written in pieces; its entry is known when it is closed."""
        return ArrayWriter(
            self.folder / file, dtype, shape, lambda written: self.meter.at(file, written), self._closed(file)
        )

    def take(self, file: str, source: Path, entry: ArrayEntry) -> None:
        """Take a complete .npy file as an array, as a hard link, or as a copy where there are none."""
        link_file(source, self.folder / file)
        sha256 = file_checksum(self.folder / file, lambda size: self.meter.at(file, size))
        self.arrays[file] = replace(entry, sha256=sha256)

    def remove(self, file: str) -> None:
        """Remove a written array."""
        (self.folder / file).unlink()
        del self.arrays[file]

    def _closed(self, file: str) -> Callable[[ArrayEntry], None]:
        def keep(entry: ArrayEntry) -> None:
            self.arrays[file] = entry

        return keep


class ArrayWriter:
    """An array under construction: rows are written in order, and the digest is updated."""

    def __init__(
        self,
        path: Path,
        dtype: str,
        shape: tuple[int, ...],
        wrote: Callable[[int], None],
        closed: Callable[[ArrayEntry], None],
    ) -> None:
        self._expected = unchecked_entry(dtype, shape)
        self._path, self._wrote, self._closed = path, wrote, closed
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._size = 0
        self._put(memoryview(array_header(dtype, shape)))

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Write the next rows."""
        block = np.ascontiguousarray(rows, STORED[self._expected.dtype]).reshape(-1).view(np.uint8).data
        self._put(block)
        self._wrote(len(block))

    def fill(self, count: int) -> None:
        """Write zeros as the next `count` rows."""
        self.write(np.zeros((count, *self._expected.shape[1:]), STORED[self._expected.dtype]))

    def close(self) -> ArrayEntry:
        """Flush the file to disk and return its entry."""
        flush(self._file)
        self._file.close()
        expected = self._expected
        assert self._size == expected.bytes, (self._size, expected)
        entry = ArrayEntry(expected.dtype, expected.shape, self._size, self._digest.hexdigest())
        self._closed(entry)
        return entry

    def abandon(self) -> None:
        """Close the file of an unfinished array; does nothing after `close`."""
        self._file.close()

    def _put(self, block: memoryview) -> None:
        self._digest.update(block)
        self._size += len(block)
        with naming(self._path):
            while len(block):
                block = block[os.write(self._file.fileno(), block) :]


def share_files(base: GraphFolder, out: FolderWriter, files: Iterable[str]) -> None:
    """Copy or link arrays of a graph into a folder under construction, with their entries."""
    names = list(files)
    link_files(base.path, out.folder, names)
    out.arrays.update({file: base.arrays[file] for file in names})
