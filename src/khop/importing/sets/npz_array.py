"""Arrays of an .npz file, read as a stream: none is in memory as a whole."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from khop.graph.npy import header_of

BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class NpzArray:
    """One array of an .npz file, compressed or not."""

    path: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def find(cls, path: Path, name: str) -> NpzArray | None:
        """Read the header of an array; None if the file has none of that name. Nothing is unpickled."""
        try:
            with zipfile.ZipFile(path) as archive:
                if f"{name}.npy" not in archive.namelist():
                    return None
                with archive.open(f"{name}.npy") as file:
                    descr, shape = header_of(cast(BinaryIO, file))
        except (zipfile.BadZipFile, ValueError) as error:
            raise ValueError(f"{path}, array {name}: cannot be read ({error}); download it again") from None
        dtype = np.dtype(descr)
        if dtype.hasobject:
            raise ValueError(
                f"{path}, array {name}: holds Python objects, and reading them executes code of the file; "
                "convert it yourself if you trust it, by numpy.savez of plain arrays"
            )
        return cls(path, name, dtype, shape)

    @classmethod
    def of(cls, path: Path, name: str) -> NpzArray:
        """Read the header of an array that must be there."""
        found = cls.find(path, name)
        if found is None:
            raise ValueError(
                f"{path}: has no array {name!r}, but {', '.join(cls.names(path))}; download the set again"
            )
        return found

    @staticmethod
    def names(path: Path) -> list[str]:
        """Return the names of all arrays of a file."""
        try:
            with zipfile.ZipFile(path) as archive:
                return [entry.removesuffix(".npy") for entry in archive.namelist()]
        except (zipfile.BadZipFile, FileNotFoundError) as error:
            raise ValueError(f"{path}: cannot be read ({error}); download it again") from None

    def whole(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        parts = [block.reshape(-1) for block in self.blocks()]
        flat = np.concatenate(parts) if parts else np.empty(0, self.dtype)
        return flat.reshape(self.shape)

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of the array, some MiB at a time."""
        width = math.prod(self.shape[1:])
        rows = max(1, BLOCK_BYTES // max(1, width * self.dtype.itemsize))
        for flat in self.numbers(0, math.prod(self.shape), rows * width):
            yield flat.reshape(-1, *self.shape[1:])

    def numbers(self, first: int, count: int, at_once: int) -> Iterator[npt.NDArray[Any]]:
        """Yield `count` numbers from position `first` on, in the array's order, `at_once` together."""
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.name}.npy") as file:
            header_of(cast(BinaryIO, file))
            file.seek(first * self.dtype.itemsize, 1)  # of a compressed array: decompressed and thrown away
            for start in range(0, count, max(1, at_once)):
                yield self._read(file, min(at_once, count - start))

    def _read(self, file: IO[bytes], count: int) -> npt.NDArray[Any]:
        try:
            data = file.read(count * self.dtype.itemsize)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(
                f"{self.path}, array {self.name}: damaged ({error}); download it again"
            ) from None
        if len(data) < count * self.dtype.itemsize:
            raise ValueError(f"{self.path}, array {self.name}: ends too early; download it again")
        return np.frombuffer(data, self.dtype)
