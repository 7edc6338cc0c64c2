"""Rows of CSV files without a header, block by block."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.importing.packages import pa, pa_csv

_BLOCK_BYTES = 16 << 20


def csv_blocks(path: Path, dtype: Literal["int64", "float64"]) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of a file, .csv or .csv.gz, as arrays (rows, columns), in order.

    pyarrow's ArrowInvalid for a field that is no such number. Nulls are NaN, and invalid in int64. ValueError
    for a damaged file.
    """
    names = [str(column) for column in range(csv_width(path))]
    if not names:
        return
    kind = pa.int64() if dtype == "int64" else pa.float64()
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            reader = pa_csv.open_csv(
                stream,
                read_options=pa_csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES),
                convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, kind)),
            )
            for batch in reader:
                if dtype == "int64" and any(column.null_count for column in batch.columns):
                    raise pa.ArrowInvalid("a null is no whole number")
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                yield np.stack(columns, axis=1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error}); download it again") from None


def csv_width(path: Path) -> int:
    """Return the number of columns; 0 for an empty file."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            line = file.readline().strip()
    except (OSError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); download it again") from None
    return line.count(b",") + 1 if line else 0
