"""The edges of one type as two arrays: the operand of the sampling kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

import khop._core as _core
from khop.errors import REMEDY
from khop.kernels.checks import first_outside
from khop.kernels.philox import WIDE_DEGREE

_DERIVED_REMEDY = (
    "the graph, or what was derived from it, is damaged: check it by `khop verify`; "
    "its folder derived/ may be removed at any time and is made anew"
)
_STORED = ("indptr", "indices")
_THREADS = 2  # for passes over all edges; callers wait for these and leave threads idle


@dataclass(frozen=True)
class Csc:
    """Edges grouped by destination: row r is `indices[indptr[r]:indptr[r + 1]]`, in the order of the graph.

    The arrays are borrowed, never copied. A mapped file stays a mapped file.
    """

    indptr: Tensor  # int64 (rows + 1)
    indices: Tensor  # int32 or int64 (edges), ids of source nodes
    num_sources: int = -1  # number of source nodes; -1: unknown and not checked
    home: str = ""  # the folder of the arrays' files
    _checked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)  # arrays

    def __post_init__(self) -> None:
        if self.indptr.dtype != torch.int64 or self.indptr.dim() != 1 or self.indptr.numel() == 0:
            raise ValueError(f"indptr is {_described(self.indptr)}: must be int64 (rows + 1)")
        if self.indices.dtype not in (torch.int32, torch.int64) or self.indices.dim() != 1:
            raise ValueError(f"indices is {_described(self.indices)}: must be int32 or int64 (edges)")
        if self.indptr.device != self.indices.device:
            places = f"indptr is on {self.indptr.device}, indices on {self.indices.device}"
            raise ValueError(f"{places}: move one of them")
        if not (self.indptr.is_contiguous() and self.indices.is_contiguous()):
            raise ValueError("indptr or indices is strided: make it contiguous")

    @property
    def num_rows(self) -> int:
        """Number of destination nodes, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of edges in all rows."""
        return self.indices.numel()

    def degrees(self) -> Tensor:
        """Return the in-degree of every row, int64; ValueError names a damaged row."""
        self.check_rows()
        return self.indptr.diff()

    def destinations(self, first: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return the row of every edge, counted from `first`; ValueError names a damaged row."""
        rows = torch.arange(first, first + self.num_rows, dtype=dtype, device=self.indptr.device)
        # The size is known. Reading it from the device would wait for all queued work.
        return torch.repeat_interleave(rows, self.degrees(), output_size=self.num_edges)

    def check_rows(self) -> None:
        """Raise ValueError that names a damaged row and its file, unless `indptr` splits all edges into rows.

        Only arrays on the CPU are checked: files are mapped there.
        """
        # Reading a device array would wait for all queued work.
        if "indptr" in self._checked or self.indptr.device.type != "cpu":
            return
        with naming_damage(self.home):
            _core.check_rows(self.indptr, self.num_edges)
        self._checked.add("indptr")

    def check(self) -> None:
        """Check rows as `check_rows` does, and sources for missing nodes. One pass, on the first call."""
        self.check_rows()
        if "indices" in self._checked:
            return
        position = -1 if self.num_sources < 0 else first_outside(self.indices, self.num_sources, _THREADS)
        if position >= 0:
            row = int(torch.searchsorted(self.indptr, position, right=True)) - 1
            problem = f"row {row} has source id {int(self.indices[position])}"
            raise damaged(self.home, "indices", f"{problem}: must be in [0, {self.num_sources})")
        self._checked.add("indices")

    @cached_property
    def has_hubs(self) -> bool:
        """True if some row needs 64-bit draws: see docs/randomness.md. The first call reads all degrees."""
        return self.num_rows > 0 and int(self.indptr.diff().max()) >= WIDE_DEGREE

    @cached_property
    def core(self) -> _core.Edges:
        """The arrays in the form that the core takes, converted once: every hop uses them."""
        return _core.Edges(self.indptr, self.indices, self.num_sources)

    def __reduce__(self) -> tuple[Callable[..., Csc], tuple[Tensor, Tensor, int, str]]:
        return Csc, (self.indptr, self.indices, self.num_sources, self.home)


def degrees_of(csc: Csc, rows: Tensor) -> Tensor:
    """Return the in-degrees of some rows, int64 (rows), on their device; ValueError for a missing row."""
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < csc.num_rows:
        raise ValueError(
            f"rows {int(rows.min())} to {int(rows.max())}: not in [0, {csc.num_rows}), the destinations"
        )
    at = rows.to(csc.indptr.device)
    return (csc.indptr[at + 1] - csc.indptr[at]).to(rows.device)


@contextmanager
def naming_damage(home: str) -> Iterator[None]:
    """Extend errors of the core about a damaged array of edges by its file and the remedy.

    `home` is the folder of the arrays' files; "" if they have none.
    """
    try:
        yield
    except _core.DamagedArray as error:
        raise damaged(home, error.array, error.problem) from error


def damaged(home: str, array: str, problem: str) -> ValueError:
    """Return the error for damage of an array of edges, or of an array derived from them."""
    if array in _STORED:
        return ValueError(
            f"{home}/{array}.npy: {problem}; {REMEDY}"
            if home
            else f"{array}: {problem}; the graph is damaged"
        )
    return ValueError(f"{home or array}: {problem}; {_DERIVED_REMEDY}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
