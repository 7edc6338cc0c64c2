"""Rows on disk, grouped by ranges of a key: the middle of a sort that does not fit in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.kernels.deal_edges import deal_edges, take_rows

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
        """Yield [first, end) of ranges with at most so many rows and values together; or of one with more."""
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
class _Run:
    offset: int  # in the file
    begin: npt.NDArray[np.int64]  # (ranges + 1): where the rows of each range begin within the run

    @property
    def rows(self) -> int:
        return int(self.begin[-1])


class Spill:
    """A file of runs. A run holds rows, range by range, field by field; within a range they keep their order.

    `reserve` is called in order; the writes that follow may happen at once on several threads.
    """

    def __init__(self, path: Path, fields: Sequence[Field], key: str, ranges: Ranges) -> None:
        self.path, self.fields, self.key, self.ranges = path, tuple(fields), key, ranges
        self._runs: list[_Run] = []
        self._end = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(field.row_bytes for field in self.fields)

    def reserve(self, rows: int) -> int:
        """Return the place of the next run."""
        place = self._end
        self._end += rows * self.row_bytes
        return place

    def write(self, place: int, rows: Rows) -> _Run:
        """Deal rows to the ranges and write them at a place; pass the result to `keep`, in order."""
        ranges = self.ranges
        begin, order = deal_edges(rows[self.key], ranges.first, ranges.shift, ranges.count)
        offset = place
        for field in self.fields:
            values = take_rows(rows[field.name].astype(field.dtype, copy=False), order)
            offset = _write_all(self._file, values, offset)
        return _Run(place, begin)

    def keep(self, run: _Run) -> None:
        """Add a written run."""
        self._runs.append(run)

    def append(self, rows: Rows) -> None:
        """Write rows as the next run."""
        self.keep(self.write(self.reserve(len(rows[self.key])), rows))

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of rows of each range."""
        counts = np.zeros(self.ranges.count, np.int64)
        for run in self._runs:
            counts += np.diff(run.begin)
        return counts

    def read(self, field: Field, first: int, end: int) -> npt.NDArray[Any]:
        """Return one field of the rows of ranges [first, end), in order of the runs."""
        total = sum(int(run.begin[end] - run.begin[first]) for run in self._runs)
        values = np.empty((total, *field.shape), field.dtype)
        block, at = _as_bytes(values), 0
        for run in self._runs:
            at = self._read_run(run, field, int(run.begin[first]), int(run.begin[end]), block, at)
        return values

    def places(self, number: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Yield where the rows of one range lie, in order, at most so many at a time; see `piece`."""
        for which, run in enumerate(self._runs):
            begin, end = int(run.begin[number]), int(run.begin[number + 1])
            for first in range(begin, end, most):
                yield which, first, min(end, first + most)

    def piece(self, field: Field, place: tuple[int, int, int]) -> npt.NDArray[Any]:
        """Return one field of the rows at a place: of a run, from one row to another."""
        which, first, end = place
        values = np.empty((end - first, *field.shape), field.dtype)
        self._read_run(self._runs[which], field, first, end, _as_bytes(values), 0)
        return values

    def pieces(self, number: int, most: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield all rows of one range in order, at most so many at a time."""
        for place in self.places(number, most):
            yield {field.name: self.piece(field, place) for field in self.fields}

    def field(self, name: str) -> Field:
        """Return a field by name."""
        return next(field for field in self.fields if field.name == name)

    def close(self) -> None:
        """Close the file and remove it."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)

    def save(self) -> None:
        """Flush the rows to disk, and write beside them where they lie, for `load`."""
        os.fsync(self._file)
        begins = np.stack([run.begin for run in self._runs]) if self._runs else np.empty((0, 0), np.int64)
        with self._index().open("wb") as file:
            np.save(file, begins)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> None:
        """Take the runs that `save` recorded."""
        self._runs, self._end = [], 0
        for begin in np.load(self._index()):
            self._runs.append(_Run(self.reserve(int(begin[-1])), begin))

    def _index(self) -> Path:
        return self.path.with_name(self.path.name + ".begins")

    def _read_run(self, run: _Run, field: Field, first: int, end: int, into: memoryview, at: int) -> int:
        offset = run.offset
        for before in self.fields:
            if before.name == field.name:
                break
            offset += before.row_bytes * run.rows
        offset, stop = offset + first * field.row_bytes, at + (end - first) * field.row_bytes
        while at < stop:
            count = os.preadv(self._file, [into[at:stop]], offset)
            if count == 0:
                raise OSError(f"{self.path}: is shorter than was written; run the command again")
            at, offset = at + count, offset + count
        return at


def _as_bytes(values: npt.NDArray[Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _write_all(file: int, values: npt.NDArray[Any], offset: int) -> int:
    """Write an array at an offset and return the offset of its end."""
    block = _as_bytes(values)
    while len(block):
        count = os.pwrite(file, block, offset)
        block, offset = block[count:], offset + count
    return offset
