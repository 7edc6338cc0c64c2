"""New rows between the rows of an array that is larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.kernels.insert_rows import insert_rows

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
CHUNK_BYTES = 1 << 20  # read, merged, digested and written while it is in the cache of a core
Read = Callable[[int, int], Array]  # rows `first` to `last` - 1, asked for in order


@dataclass(frozen=True, eq=False)
class MergedRows:
    """Places of new rows in an array: row i comes before row `at[i]` of the array."""

    count: int  # rows of the array
    at: Int64s  # ascending, 0 to `count`

    def __len__(self) -> int:
        return self.count + len(self.at)

    @property
    def is_at_end(self) -> bool:
        """True if all new rows follow the rows of the array."""
        return not len(self.at) or int(self.at[0]) == self.count

    def chunks(self, read: Read, added: Array) -> Iterator[Array]:
        """Yield the rows of both, about a MiB at once. The dtype is that of `added`."""
        row_bytes = max(1, int(np.prod(added.shape[1:], dtype=np.int64)) * added.itemsize)
        step, done = max(1, CHUNK_BYTES // row_bytes), 0
        for first in range(0, max(1, self.count), step):
            last = min(self.count, first + step)
            end = len(self.at) if last == self.count else int(np.searchsorted(self.at, last))
            rows = read(first, last).astype(added.dtype, copy=False)
            yield insert_rows(rows, self.at[done:end] - first, added[done:end])
            done = end


def at_end(count: int, added: int) -> MergedRows:
    """Return the places of rows that follow all rows of an array."""
    return MergedRows(count, np.full(added, count, np.int64))


def merged_offsets(read: Read, count: int, rows: Int64s, num_rows: int) -> Iterator[Array]:
    """Yield the offsets of `num_rows` rows with the entries of `count` rows, and new ones.

    `read` gives the `count` + 1 offsets without the new entries; `rows` has the row of each new entry,
    ascending.
    """
    step, before, last = CHUNK_BYTES // 8, 0, np.zeros(1, np.int64)
    for first in range(0, num_rows + 1, step):
        end = min(num_rows + 1, first + step)
        known = read(min(first, count + 1), min(end, count + 1))
        last = known[-1:] if len(known) else last
        offsets = np.concatenate([known, np.broadcast_to(last, end - first - len(known))])
        through = int(np.searchsorted(rows, end - 1))  # entries of rows before the last of these
        counts = np.bincount(rows[before:through] - (first - 1), minlength=end - first)
        yield offsets + before + np.cumsum(counts)
        before = through
