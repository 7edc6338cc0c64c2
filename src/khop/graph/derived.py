"""Arrays that are computed from a graph when they are first needed, and kept in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from torch import Tensor

from khop.graph.atomic import new_folder
from khop.graph.inputs import Given
from khop.graph.npy import file_problem, map_array, row_chunks, unchecked_entry, write_array

FOLDER = "derived"
_FILE = "array.npy"


class Derived:
    """Makes each array once: per process, and of a folder that can be written to once for all processes.

    Threads may share it; they wait for the one that makes an array. On disk an array appears whole or not at
    all, and belongs to the fingerprint of its graph.
    """

    def __init__(self, path: Path | None = None, fingerprint: str = "") -> None:
        self._home = None if path is None else path / FOLDER / fingerprint[:16]
        self._made: dict[str, Tensor] = {}
        self._lock = Lock()

    def vector(self, name: str, count: int, make: Callable[[], Tensor], dtype: str = "int64") -> Tensor:
        """The vector of `count` entries called `name`, relative to the folder of derived arrays."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._kept(name, count, make, dtype)
            return self._made[name]

    def _kept(self, name: str, count: int, make: Callable[[], Tensor], dtype: str) -> Tensor:
        if self._home is None:
            return make()
        file, entry = self._home / name / _FILE, unchecked_entry(dtype, (count,))
        if file_problem(file, entry) is None:
            return map_array(file, entry)
        vector = make()
        try:
            _write(file, vector)
        except (OSError, ValueError):
            if file_problem(file, entry) is not None:
                return vector  # read-only, or full: this process has it in memory
        return map_array(file, entry)  # its own, or just written by another process


def _write(file: Path, vector: Tensor) -> None:
    given = Given.of(vector, file.name)
    with new_folder(file.parent) as hidden:
        chunks = (chunk for _, chunk in row_chunks(given.values))
        write_array(hidden / file.name, given.dtype, given.values.shape, chunks, lambda _: None)
