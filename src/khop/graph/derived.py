"""Arrays that are computed from a graph when they are first needed, and kept in its folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from khop.graph.atomic import new_folder
from khop.graph.inputs import Given
from khop.graph.npy import ArrayEntry, file_problem, map_array, row_chunks, unchecked_entry, write_array

FOLDER = "derived"
_FILE = "array.npy"


class Derived:
    """Makes each array once: per process, and of a folder that can be written to once for all processes.

    Threads may share it; they and other processes wait for the one that makes an array. On disk an array
    appears whole or not at all, and belongs to the fingerprint of its graph. No `make` asks for another.
    """

    def __init__(self, path: Path | None = None, fingerprint: str = "") -> None:
        self._home = None if path is None else path / FOLDER / fingerprint[:16]
        self._made: dict[str, Tensor] = {}
        self._lock = Lock()

    def vector(self, name: str, count: int, make: Callable[[], Tensor], dtype: str = "int64") -> Tensor:
        """The vector of `count` entries called `name`, relative to the folder of derived arrays."""
        return self.joined(name, count, lambda: [make()], dtype)

    def joined(
        self, name: str, count: int, make: Callable[[], Sequence[Tensor]], dtype: str = "int64"
    ) -> Tensor:
        """A vector whose pieces `make` gives. Where it can be kept it is never in memory as a whole."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._kept(name, count, make, dtype)
            return self._made[name]

    def _kept(self, name: str, count: int, make: Callable[[], Sequence[Tensor]], dtype: str) -> Tensor:
        if self._home is None:
            return _whole(make())
        file, entry = self._home / name / _FILE, unchecked_entry(dtype, (count,))
        if file_problem(file, entry) is None:
            return map_array(file, entry)
        with _alone(self._home):
            if file_problem(file, entry) is not None:
                pieces = make()
                try:
                    _write(file, entry, pieces)
                except (OSError, ValueError):
                    if file_problem(file, entry) is not None:
                        return _whole(pieces)  # read-only, or full: this process has it in memory
        return map_array(file, entry)  # its own, or written by another process


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One process after another, where the file system knows locks: else several may make the same."""
    with ExitStack() as stack:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(home, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _whole(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def _write(file: Path, entry: ArrayEntry, pieces: Sequence[Tensor]) -> None:
    values = (Given.of(piece, file.name).values for piece in pieces)
    chunks = (chunk for piece in values for _, chunk in row_chunks(piece))
    with new_folder(file.parent) as hidden:
        write_array(hidden / file.name, entry.dtype, entry.shape, chunks, lambda _: None)
