"""Arrays of public datasets: CSV files without a header in blocks, .npy and .npz files."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.data.tables.packages import explained, pa, pa_csv, reading
from khop.graph.atomic import check_disk

_BLOCK_BYTES = 16 << 20


def csv_blocks(path: Path, dtype: Literal["int64", "float64"]) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of a file, .csv or .csv.gz, as arrays (rows, columns), in order.

    pyarrow's ArrowInvalid for a field that is not a number of the dtype. Nulls are NaN, and invalid for
    int64. ValueError for a damaged file.
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
                    raise pa.ArrowInvalid("a null is not a whole number")
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                yield np.stack(columns, axis=1)
    except OSError as error:
        raise explained(error, str(path), "download it again", "is damaged") from None


def csv_width(path: Path) -> int:
    """Return the number of columns; 0 for an empty file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(str(path), "download it again"), opened(path, "rb") as file:
        line = file.readline().strip()
    return line.count(b",") + 1 if line else 0


Numbers = npt.NDArray[Any]


def csv_numbers(path: Path, rows: int | None = None, scratch: Scratch | None = None) -> Numbers:
    """Return the numbers of a file as (rows, columns): int64 if all are whole numbers, else float32.

    Nulls are NaN. `rows` is the expected number of rows; ValueError if the file has a different number. With
    `scratch`, a large array is memory-mapped.
    """
    width = csv_width(path) or 1

    def made(blocks: Iterator[Numbers], dtype: str) -> Numbers:
        if rows is None:
            return np.concatenate([np.empty((0, width), dtype), *blocks])
        return (scratch or Scratch(Path(), sys.maxsize)).filled((rows, width), dtype, blocks, str(path))

    try:
        return made(csv_blocks(path, "int64"), "int64")
    except pa.ArrowInvalid:
        with reading(str(path), "download it again", "is not a table of numbers"):
            # Through float64, like the publishers' readers, for the same bits.
            return made((block.astype(np.float32) for block in csv_blocks(path, "float64")), "float32")


def csv_table(path: Path) -> dict[str, list[str]]:
    """Return the text of each column by its name. ValueError for a file that is missing or damaged."""
    rows = csv_rows(path)
    if len(rows) < 2:
        raise ValueError(f"{path}: has {len(rows)} rows, but a header and values are expected")
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}


def csv_rows(path: Path) -> list[list[str]]:
    """Return the fields of all rows, the first one included. The rows have the same number of fields."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give the folder as it was published")
    with reading(str(path), "download it again"), gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        try:
            rows = [row for row in csv.reader(file) if row]
        except csv.Error as error:
            raise ValueError(f"{path}: {error}; download it again") from None
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{path}: rows have different numbers of fields; download it again")
    return rows


def npy_array(path: Path, raw_width: int | None = None) -> npt.NDArray[Any]:
    """Map a .npy file. Nothing is unpickled.

    With `raw_width`, the file may also be float32 numbers without a header, in rows of this width.
    """
    try:
        mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; give the folder as it was published") from None
    except ValueError:
        size = path.stat().st_size
        with path.open("rb") as file:
            has_header = file.read(6) == b"\x93NUMPY"
        if raw_width is None or size % (4 * raw_width) or has_header:
            raise ValueError(f"{path}: is damaged, or not a .npy file; download it again") from None
        return np.memmap(path, np.float32, "r", shape=(size // (4 * raw_width), raw_width))


def npz_names(path: Path) -> list[str]:
    """Return the names of all arrays of an .npz file."""
    with reading(str(path), "download it again"), zipfile.ZipFile(path) as archive:
        return [entry.removesuffix(".npy") for entry in archive.namelist()]


def npz_array(path: Path, name: str, folder: Path) -> Numbers:
    """Unpack an array of an .npz file into a folder, and map it. Nothing is unpickled."""
    names, place = npz_names(path), f"{path}, array {name}"
    if name not in names:
        raise ValueError(f"{path}: has no array {name!r}, but {', '.join(names)}; download the set again")
    with reading(place, "download it again", "is damaged"), zipfile.ZipFile(path) as archive:
        check_disk(folder, archive.getinfo(f"{name}.npy").file_size, "an array while it is read")
        copy = archive.extract(f"{name}.npy", folder / path.name)
    try:
        mapped: Numbers = np.load(copy, mmap_mode="r", allow_pickle=False)
        return mapped
    except ValueError as error:
        problem = (
            "has Python objects, and reading them executes code of the file; convert it yourself if you "
            "trust it, by numpy.savez of plain arrays"
        )
        is_known = "Python objects" in str(error)
        raise ValueError(f"{place}: {problem if is_known else 'is damaged; download it again'}") from None


@dataclass(frozen=True)
class Scratch:
    """A folder for arrays that are larger than `most_bytes`. It is removed at the end."""

    folder: Path
    most_bytes: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    @contextmanager
    def beside(cls, out: Path, most_bytes: int) -> Iterator[Scratch]:
        """Create the folder next to the graph folder `out`."""
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
                f"{name}: has {first:,} rows, but {shape[0]:,} are expected; download the set again, or "
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
