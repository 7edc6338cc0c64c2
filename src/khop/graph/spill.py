"""Rows on disk, grouped by ranges of a key: the intermediate files of an external sort."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.atomic import naming
from khop.kernels.edge_arrays import deal_edges, take_rows

Rows = Mapping[str, npt.NDArray[Any]]  # arrays of the same length, by field
MOST_RANGES = 1024


@dataclass(frozen=True)
class Ranges:
    """Consecutive ranges of a key, each of 2^shift values, from `first`."""

    first: int
    end: int
    shift: int
    count: int

    @classmethod
    def of(cls, first: int, end: int) -> Ranges:
        """Divide [first, end) into at most 1024 ranges."""
        values = max(1, end - first)
        shift = max(0, (values - 1).bit_length() - (MOST_RANGES - 1).bit_length())
        return cls(first, end, shift, ((values - 1) >> shift) + 1)

    def begin(self, number: int) -> int:
        """Return the first value of a range; of the range after the last, the end."""
        return min(self.end, self.first + (number << self.shift))

    def within(self, number: int) -> Ranges:
        """Divide a range further."""
        return Ranges.of(self.begin(number), self.begin(number + 1))

    def grouped(
        self, counts: npt.NDArray[np.int64], most: int, most_values: int
    ) -> Iterator[tuple[int, int]]:
        """Yield [first, end) of range groups within a limit of rows and values; a larger range is alone."""
        first, rows = 0, 0
        for number, count in enumerate(counts.tolist()):
            is_full = rows + count > most or self.begin(number + 1) - self.begin(first) > most_values
            if number > first and is_full:
                yield first, number
                first, rows = number, 0
            rows += count
        yield first, self.count


@dataclass(frozen=True)
class Field:
    """One value of a row: its name, the dtype of NumPy, the shape."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class SortedRun:
    """Rows that were written together."""

    offset: int  # in the file
    begin: npt.NDArray[np.int64]  # (ranges + 1): where the rows of each range begin within the run

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.begin[-1])


Place = tuple[SortedRun, int, int]  # rows of a run, from one to another


class Runs:
    """Positions of rows in a file: its runs, in order."""

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.runs: list[SortedRun] = []
        self._end = 0

    def reserve(self, rows: int) -> int:
        """Return the offset of the next run."""
        offset = self._end
        self._end += rows * self.row_bytes
        return offset

    def keep(self, run: SortedRun) -> None:
        """Add a written run."""
        self.runs.append(run)

    def counts(self, ranges: Ranges) -> npt.NDArray[np.int64]:
        """Return the number of rows of each range."""
        counts = np.zeros(ranges.count, np.int64)
        for run in self.runs:
            counts += np.diff(run.begin)
        return counts

    def within(self, first: int, end: int) -> list[Place]:
        """Return the positions of the rows of ranges [first, end), in order."""
        return [(run, int(run.begin[first]), int(run.begin[end])) for run in self.runs]

    def places(self, number: int, most: int) -> Iterator[Place]:
        """Yield the positions of one range's rows in order, in chunks."""
        for run, begin, end in self.within(number, number + 1):
            for first in range(begin, end, most):
                yield run, first, min(end, first + most)


class Spill:
    """A file of runs. A run stores rows by range, then by field; within a range, rows keep their order.

    `runs.reserve` is called in order; the writes that follow may run concurrently on several threads.
    """

    def __init__(self, path: Path, fields: Sequence[Field], key: str, ranges: Ranges) -> None:
        self.path, self.fields, self.key, self.ranges = path, tuple(fields), key, ranges
        self.row_bytes = sum(field.row_bytes for field in self.fields)
        self.runs = Runs(self.row_bytes)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, place: int, rows: Rows) -> SortedRun:
        """Sort rows by range and write them at an offset; pass the result to `runs.keep`, in order."""
        ranges = self.ranges
        begin, order = deal_edges(rows[self.key], ranges.first, ranges.shift, ranges.count)
        offset = place
        for field in self.fields:
            values = take_rows(rows[field.name].astype(field.dtype, copy=False), order)
            with naming(self.path):
                offset = _write_all(self._file, values, offset)
        return SortedRun(place, begin)

    def append(self, rows: Rows) -> None:
        """Write rows as the next run."""
        self.runs.keep(self.write(self.runs.reserve(len(rows[self.key])), rows))

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of rows of each range."""
        return self.runs.counts(self.ranges)

    def read(self, name: str, first: int, end: int) -> npt.NDArray[Any]:
        """Return one field of the rows of ranges [first, end), in order of the runs."""
        return self.read_places(name, self.runs.within(first, end))

    def read_places(self, name: str, places: Sequence[Place]) -> npt.NDArray[Any]:
        """Return one field of the rows at some positions."""
        number = [field.name for field in self.fields].index(name)
        field, bytes_before = self.fields[number], sum(each.row_bytes for each in self.fields[:number])
        values = np.empty((sum(end - first for _, first, end in places), *field.shape), field.dtype)
        block = _as_bytes(values)
        for run, first, end in places:
            offset = run.offset + bytes_before * run.rows + first * field.row_bytes
            size = (end - first) * field.row_bytes
            if not _read_all(self._file, block[:size], offset):
                raise OSError(f"{self.path}: is shorter than was written; run the command again")
            block = block[size:]
        return values

    def pieces(self, number: int, most: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield all rows of one range in order, in chunks."""
        for place in self.runs.places(number, most):
            yield {field.name: self.read_places(field.name, [place]) for field in self.fields}

    def close(self) -> None:
        """Close the file and remove it."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)

    def save(self) -> None:
        """Flush the rows to disk, and write their positions to a second file, for `load`."""
        os.fsync(self._file)
        begins = [run.begin for run in self.runs.runs]
        with naming(_index(self.path)), _index(self.path).open("wb") as file:
            np.save(file, np.stack(begins) if begins else np.empty((0, 0), np.int64))
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> None:
        """Restore the runs that `save` recorded."""
        self.runs = Runs(self.row_bytes)
        for begin in np.load(_index(self.path)):
            self.runs.keep(SortedRun(self.runs.reserve(int(begin[-1])), begin))


def _index(path: Path) -> Path:
    return path.with_name(path.name + ".begins")


def _as_bytes(values: npt.NDArray[Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _write_all(file: int, values: npt.NDArray[Any], offset: int) -> int:
    """Write an array at an offset and return the offset of its end."""
    block = _as_bytes(values)
    while len(block):
        count = os.pwrite(file, block, offset)
        block, offset = block[count:], offset + count
    return offset


def _read_all(file: int, block: memoryview, offset: int) -> bool:
    """Fill a block with the bytes at an offset; return False if the file is too short."""
    while len(block):
        count = os.preadv(file, [block], offset)
        if count == 0:
            return False
        block, offset = block[count:], offset + count
    return True
