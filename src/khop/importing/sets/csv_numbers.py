"""Numbers of CSV files without a header, also compressed, as OGB publishes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.packages import pa
from khop.importing.sets.csv_blocks import csv_blocks, csv_width
from khop.importing.sets.scratch import Scratch

Numbers = npt.NDArray[Any]


def csv_numbers(path: Path, rows: int | None = None, scratch: Scratch | None = None) -> Numbers:
    """Return the numbers of a file as (rows, columns): int64 if all are whole numbers, else float32.

    Nulls are NaN. `rows` is the expected number of rows; ValueError if the file has another one. With
    `scratch`, a large array is a mapped file.
    """
    try:
        return _array(path, csv_blocks(path, "int64"), "int64", rows, scratch)
    except pa.ArrowInvalid:
        # Through float64, as the publishers' own readers do: the same bits.
        blocks = (block.astype(np.float32) for block in _readable(path))
        return _array(path, blocks, "float32", rows, scratch)


def _readable(path: Path) -> Iterator[Numbers]:
    try:
        yield from csv_blocks(path, "float64")
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{path}: not a table of numbers ({str(error).splitlines()[0]}); download the file again"
        ) from None


def _array(
    path: Path, blocks: Iterator[Numbers], dtype: str, rows: int | None, scratch: Scratch | None
) -> Numbers:
    width = csv_width(path) or 1
    if rows is None or scratch is None:
        parts = list(blocks)
        made = np.concatenate(parts) if parts else np.empty((0, width), dtype)
        if rows is not None and len(made) != rows:
            raise ValueError(
                f"{path}: has {len(made):,} rows, and {rows:,} are expected; download the set again, or "
                "correct it"
            )
        return made
    return scratch.filled((rows, width), dtype, blocks, str(path))
