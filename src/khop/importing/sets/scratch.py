"""Arrays that are filled block by block, in memory or, if they are large, in a file beside the output."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.disk_space import check_disk

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Scratch:
    """A folder for arrays that are larger than `most_bytes`. It is removed at the end."""

    folder: Path
    most_bytes: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    @contextmanager
    def beside(cls, out: Path, most_bytes: int) -> Iterator[Scratch]:
        """Make the folder beside the graph folder `out`."""
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.reading-", dir=out.parent) as folder:
            yield cls(Path(folder), most_bytes)

    def filled(self, shape: tuple[int, ...], dtype: Any, blocks: Iterable[Numbers], name: str) -> Numbers:
        """Return an array with the rows of the blocks; ValueError for another number of rows."""
        made = self._empty(shape, np.dtype(dtype))
        first = 0
        for block in blocks:
            if block.shape[1:] == shape[1:] and first + len(block) <= shape[0]:
                made[first : first + len(block)] = block
            first += len(block)
        if first != shape[0]:
            raise ValueError(
                f"{name}: has {first:,} rows, and {shape[0]:,} are expected; download the set again, or "
                "correct it"
            )
        return made

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Numbers:
        size = math.prod(shape) * dtype.itemsize
        if size <= self.most_bytes:
            return np.empty(shape, dtype)
        check_disk(self.folder, size, "an array while it is read")
        return np.lib.format.open_memmap(
            self.folder / f"{next(self._numbers)}.npy", mode="w+", dtype=dtype, shape=shape
        )
