"""Arrays of public datasets, read in blocks: CSV files without a header, .npy and .npz files."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from khop.data.tables.packages import explained, pa, pa_csv, reading
from khop.graph.atomic import check_disk
from khop.graph.npy import header_of

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
    try:
        return _array(path, csv_blocks(path, "int64"), "int64", rows, scratch)
    except pa.ArrowInvalid:
        # Through float64, like the publishers' readers, for the same bits.
        blocks = (block.astype(np.float32) for block in _readable(path))
        return _array(path, blocks, "float32", rows, scratch)


def _readable(path: Path) -> Iterator[Numbers]:
    with reading(str(path), "download it again", "is not a table of numbers"):
        yield from csv_blocks(path, "float64")


def _array(
    path: Path, blocks: Iterator[Numbers], dtype: str, rows: int | None, scratch: Scratch | None
) -> Numbers:
    width = csv_width(path) or 1
    if rows is None or scratch is None:
        parts = list(blocks)
        made = np.concatenate(parts) if parts else np.empty((0, width), dtype)
        if rows is not None and len(made) != rows:
            raise ValueError(
                f"{path}: has {len(made):,} rows, but {rows:,} are expected; download the set again, or "
                "correct it"
            )
        return made
    return scratch.filled((rows, width), dtype, blocks, str(path))


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
        if raw_width is None or size % (4 * raw_width) or _has_header(path):
            raise ValueError(f"{path}: is damaged, or not a .npy file; download it again") from None
        return np.memmap(path, np.float32, "r", shape=(size // (4 * raw_width), raw_width))


def _has_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


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
        """Read the header of an array; None if it does not exist. Nothing is unpickled."""
        try:
            with zipfile.ZipFile(path) as archive:
                if f"{name}.npy" not in archive.namelist():
                    return None
                with archive.open(f"{name}.npy") as file:
                    descr, shape = header_of(cast(BinaryIO, file))
        except (zipfile.BadZipFile, ValueError):
            raise ValueError(f"{path}, array {name}: is damaged; download it again") from None
        dtype = np.dtype(descr)
        if dtype.hasobject:
            raise ValueError(
                f"{path}, array {name}: has Python objects, and reading them executes code of the file; "
                "convert it yourself if you trust it, by numpy.savez of plain arrays"
            )
        return cls(path, name, dtype, shape)

    @classmethod
    def of(cls, path: Path, name: str) -> NpzArray:
        """Read the header of an array that must exist."""
        found = cls.find(path, name)
        if found is None:
            raise ValueError(
                f"{path}: has no array {name!r}, but {', '.join(cls.names(path))}; download the set again"
            )
        return found

    @staticmethod
    def names(path: Path) -> list[str]:
        """Return the names of all arrays of a file."""
        with reading(str(path), "download it again"), zipfile.ZipFile(path) as archive:
            return [entry.removesuffix(".npy") for entry in archive.namelist()]

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
            file.seek(first * self.dtype.itemsize, 1)  # for a compressed array: decompressed and discarded
            for start in range(0, count, max(1, at_once)):
                yield self._read(file, min(at_once, count - start))

    def _read(self, file: IO[bytes], count: int) -> npt.NDArray[Any]:
        with reading(f"{self.path}, array {self.name}", "download it again", "is damaged"):
            data = file.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise ValueError(f"{self.path}, array {self.name}: ends too early; download it again")
        return np.frombuffer(data, self.dtype)


def rows_together(streams: Sequence[Iterator[Numbers]], name: str) -> Iterator[tuple[Numbers, ...]]:
    """Yield the same rows of all streams, regardless of their blocks.

    ValueError unless all streams have the same number of rows; `name` for errors.
    """
    held = [next(stream, None) for stream in streams]
    while True:
        blocks = [block for block in held if block is not None]
        if len(blocks) < len(held):
            break
        rows = min(len(block) for block in blocks)
        yield tuple(block[:rows] for block in blocks)
        held = [
            block[rows:] if len(block) > rows else next(stream, None)
            for block, stream in zip(blocks, streams, strict=True)
        ]
    if any(block is not None and len(block) for block in held):
        raise ValueError(f"{name}: edges and their columns have different numbers of rows; download it again")


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
