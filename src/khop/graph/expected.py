"""Shapes and dtypes that the arrays of a graph folder must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from khop.graph.npy import ArrayEntry
from khop.kernels.key_index import bucket_bits

ID_DTYPES = ("int32", "int64")


@dataclass(frozen=True)
class Expected:
    """Shape and dtype that an array must have according to the counts."""

    rows: int | None  # None: any number
    dtypes: tuple[str, ...] = ()  # dtypes of a vector; () for a column, of any dtype and row shape

    def fits(self, entry: ArrayEntry) -> bool:
        """Return True if the array described in graph.json has this shape and dtype."""
        rows = self.rows is None or entry.shape[:1] == (self.rows,)
        return rows and (not self.dtypes or (len(entry.shape) == 1 and entry.dtype in self.dtypes))

    def __str__(self) -> str:
        rows = "any" if self.rows is None else self.rows
        return f"{' or '.join(self.dtypes)} of shape ({rows},)" if self.dtypes else f"shape ({rows}, ...)"


def _index_arrays(count: int) -> dict[str, Expected]:
    return {
        "buckets": Expected((1 << bucket_bits(count)) + 1, ("int64",)),
        "rows": Expected(count, ID_DTYPES),
        "tags": Expected(count, ("int16",)),
    }


def _string_arrays(count: int) -> dict[str, Expected]:
    strings = {"offsets": Expected(count + 1, ("int64",)), "bytes": Expected(None, ("uint8",))}
    return strings | _index_arrays(count)


def _integer_arrays(count: int) -> dict[str, Expected]:
    return {"keys": Expected(count, ("int64",))} | _index_arrays(count)


ID_ARRAYS: dict[str, Callable[[int], dict[str, Expected]]] = {
    "string": _string_arrays,
    "int64": _integer_arrays,
}  # arrays of the nodes' own ids, by the kind of ids and the number of nodes
