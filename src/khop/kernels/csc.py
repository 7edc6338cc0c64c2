"""The edges of one type in CSC: checks, conversion from edge lists, selection, and passes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

import khop._core as _core
from khop.errors import REMEDY
from khop.kernels.memory import pooled
from khop.kernels.philox import WIDE_DEGREE

INDEX_DTYPES = (torch.int32, torch.int64)


def check_ids(ids: Tensor, limit: int, what: str, threads: int = 1) -> None:
    """Raise ValueError if an id is outside [0, limit); the error names the first one and its position."""
    if ids.dim() != 1 or ids.dtype not in INDEX_DTYPES:
        raise ValueError(f"{what} ids are {ids.dtype} {tuple(ids.shape)}: must be int32 or int64 (n)")
    position = first_outside(ids, limit, threads)
    if position >= 0:
        raise outside_error(what, ids, position, limit)


def check_int64(name: str, values: Tensor, count: int, device: torch.device) -> None:
    """Raise ValueError unless `values` are int64 (count), on the device."""
    if values.dtype != torch.int64 or values.shape != (count,) or values.device != device:
        raise not_int64(name, values, count, device)


def not_int64(name: str, values: Tensor, count: int, device: torch.device) -> ValueError:
    """Return the error for values that are not int64 (count), or not on the device."""
    given = f"{name} is {values.dtype} {tuple(values.shape)} on {values.device}"
    return ValueError(f"{given}: must be int64 ({count}) on {device}")


def first_outside(ids: Tensor, limit: int, threads: int = 1) -> int:
    """Return the first position of an id (int32 or int64) outside [0, limit), or -1."""
    if ids.device.type == "cpu":
        return _core.first_outside(ids.contiguous(), limit, threads)
    return first_outside_reference(ids, limit)


def outside_error(what: str, ids: Tensor, position: int, limit: int) -> ValueError:
    """Return the error for an id at `position` outside [0, limit)."""
    return ValueError(f"{what} id {int(ids[position])} at position {position}: must be in [0, {limit})")


def check_segments(indptr: Tensor, indices: Tensor, num_sources: int, threads: int = 1) -> None:
    """Raise ValueError unless `indptr` splits all of `indices` into rows and every index is a source row."""
    if indptr.device != indices.device:
        raise ValueError(f"indptr is on {indptr.device}, indices on {indices.device}: move one of them")
    check_offsets(indptr, indices.numel())
    check_ids(indices, num_sources, "source", threads)


def check_offsets(indptr: Tensor, edges: int) -> None:
    """Raise ValueError unless `indptr` begins with 0, never decreases and ends with `edges`."""
    if indptr.dim() != 1 or indptr.numel() == 0 or indptr.dtype != torch.int64:
        raise ValueError(f"indptr is {indptr.dtype} {tuple(indptr.shape)}: must be int64 (rows + 1)")
    if indptr.device.type == "cpu":
        position = _core.first_wrong_offset(indptr.contiguous(), edges)
    else:
        position = first_wrong_offset_reference(indptr, edges)
    if position >= 0:
        raise ValueError(
            f"indptr has {int(indptr[position])} at position {position}: "
            f"it must begin with 0, never fall and end with the number of edges, {edges}"
        )


def first_outside_reference(ids: Tensor, limit: int) -> int:
    """Return the first position of an id outside [0, limit), or -1."""
    return _first_true((ids < 0) | (ids >= limit))


def first_wrong_offset_reference(indptr: Tensor, edges: int) -> int:
    """Return the first position of `indptr` that is inconsistent with `edges` edges, or -1."""
    wrong = torch.zeros_like(indptr, dtype=torch.bool)
    wrong[1:] = indptr.diff() < 0
    wrong[0] |= indptr[0] != 0
    wrong[-1] |= indptr[-1] != edges
    return _first_true(wrong)


def _first_true(flags: Tensor) -> int:
    positions = flags.nonzero()
    return int(positions[0, 0]) if positions.numel() else -1


_DERIVED_REMEDY = (
    "the graph, or what was derived from it, is damaged: check it by `khop verify`; "
    "its folder derived/ may be removed at any time and is rebuilt"
)
_STORED = ("indptr", "indices")
_THREADS = 2  # for passes over all edges; callers wait for these and leave threads idle


@dataclass(frozen=True)
class Csc:
    """Edges grouped by destination: row r is `indices[indptr[r]:indptr[r + 1]]`, in the order of the graph.

    The arrays are not copied: a mapped file stays mapped.
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
        """Raise ValueError, naming the damaged row and its file, unless `indptr` splits all edges into rows.

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
    def most_edges(self) -> int:
        """Number of edges of the longest row. The first call reads all degrees."""
        return int(self.indptr.diff().max()) if self.num_rows > 0 else 0

    @property
    def has_hubs(self) -> bool:
        """True if some row needs 64-bit draws: see docs/randomness.md. The first call reads all degrees."""
        return self.most_edges >= WIDE_DEGREE

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
    """Add the file and the remedy to errors of the core about damaged edge arrays.

    `home` is the folder of the arrays' files; "" if they have none.
    """
    try:
        yield
    except _core.DamagedArray as error:
        raise damaged(home, error.array, error.problem) from error


def damaged(home: str, array: str, problem: str) -> ValueError:
    """Return the error for a damaged edge array, or an array derived from one."""
    if array in _STORED:
        return ValueError(
            f"{home}/{array}.npy: {problem}; {REMEDY}"
            if home
            else f"{array}: {problem}; the graph is damaged"
        )
    return ValueError(f"{home or array}: {problem}; {_DERIVED_REMEDY}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def build_csc(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int, *, threads: int = 1
) -> tuple[Csc, Tensor]:
    """Group edges by destination, in input order within a row; return the CSC and each edge's input position.

    The second value is an int64 permutation, CSC position -> input position. `indices` are int32 if
    `num_sources` is at most 2^31. The inputs, int32 or int64, are only read. Besides the result it takes 1
    byte per edge (2 up to a million edges) and, per thread, the memory of the largest of up to 2048 blocks of
    destinations, without the edges of its largest row if that row has most of them.
    """
    _check(sources, destinations, num_sources, num_destinations)
    if sources.device.type != "cpu":
        return build_csc_reference(sources, destinations, num_sources, num_destinations)
    order = pooled((sources.numel(),), torch.int64)
    return _native(sources, destinations, num_sources, num_destinations, order, threads), order


def group_by_destination(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int, *, threads: int = 1
) -> Csc:
    """Group edges by destination as `build_csc` does, without input positions: 8 bytes per edge less."""
    _check(sources, destinations, num_sources, num_destinations)
    if sources.device.type != "cpu":
        return build_csc_reference(sources, destinations, num_sources, num_destinations)[0]
    return _native(sources, destinations, num_sources, num_destinations, None, threads)


def _native(
    sources: Tensor,
    destinations: Tensor,
    num_sources: int,
    num_destinations: int,
    order: Tensor | None,
    threads: int,
) -> Csc:
    dtype = index_dtype(num_sources)
    if sources.dtype == torch.int32 and dtype == torch.int64:
        sources, destinations = sources.long(), destinations.long()
    indptr = pooled((num_destinations + 1,), torch.int64)
    indices = pooled((sources.numel(),), dtype)
    outside = _core.build_csc(
        sources.contiguous(), destinations.contiguous(), num_sources, indptr, indices, order, threads
    )
    for ids, position, limit, what in (
        (sources, outside[0], num_sources, "source"),
        (destinations, outside[1], num_destinations, "destination"),
    ):
        if position >= 0:
            raise outside_error(what, ids, position, limit)
    return Csc(indptr, indices)


def build_csc_reference(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int
) -> tuple[Csc, Tensor]:
    """The same as `build_csc` in plain torch, on any device."""
    check_ids(destinations, num_destinations, "destination")
    check_ids(sources, num_sources, "source")
    order = torch.argsort(destinations, stable=True)
    counts = torch.bincount(destinations, minlength=num_destinations)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Csc(indptr, sources[order].to(index_dtype(num_sources))), order


def index_dtype(count: int) -> torch.dtype:
    """Return int32 if it can hold every id below `count`, else int64."""
    return torch.int32 if count <= 2**31 else torch.int64


def _check(sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int) -> None:
    for what, count in (("num_sources", num_sources), ("num_destinations", num_destinations)):
        if count < 0:
            raise ValueError(f"{what} {count}: must not be negative")
    for what, ids in (("sources", sources), ("destinations", destinations)):
        if ids.dim() != 1 or ids.dtype not in INDEX_DTYPES:
            raise ValueError(f"{what} are {ids.dtype} {tuple(ids.shape)}: must be int32 or int64 (edges)")
    if sources.numel() != destinations.numel():
        raise ValueError(
            f"{sources.numel()} sources, {destinations.numel()} destinations: an edge needs one of each"
        )
    if sources.dtype != destinations.dtype or sources.device != destinations.device:
        raise ValueError(
            f"sources are {sources.dtype} on {sources.device}, destinations {destinations.dtype} "
            f"on {destinations.device}: must have the same dtype and device"
        )


def chosen_edges(csc: Csc, positions: Tensor) -> Csc:
    """Return only the edges at int64 positions, which must ascend; rows keep their order."""
    csc.check_rows()
    indptr = torch.searchsorted(positions, csc.indptr)
    return Csc(indptr, csc.indices[positions], csc.num_sources)


class ChosenRows(Mapping[str, Tensor]):
    """Columns by name with only the rows at int64 positions, each gathered once. Threads may share it."""

    def __init__(self, columns: Mapping[str, Tensor], positions: Tensor) -> None:
        self._columns = columns
        self._positions = positions
        self._taken: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._taken:
            self._taken[name] = self._columns[name][self._positions]
        return self._taken[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns  # without gathering its rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


_MOST = 1 << 18


@dataclass(frozen=True, eq=False)
class EdgeSpan:
    """Consecutive edges of consecutive rows. The first and the last row may have more edges."""

    first: int  # position of the first edge
    end: int
    first_row: int
    counts: Tensor  # int64 (rows): edges of each row in the span

    def per_edge(self, values: Tensor) -> Tensor:
        """Return for each edge the value of its row; `values` has one per row of the span."""
        return torch.repeat_interleave(values, self.counts, output_size=self.end - self.first)

    @property
    def rows(self) -> slice:
        """The rows of the span."""
        return slice(self.first_row, self.first_row + self.counts.numel())


def edge_spans(indptr: Tensor, most: int = _MOST) -> Iterator[EdgeSpan]:
    """Yield all edges, at most `most` at a time; `indptr`, int64 (rows + 1), must be valid."""
    for first in range(0, int(indptr[-1]), most):
        end = min(first + most, int(indptr[-1]))
        ends = torch.tensor([first, end - 1])
        first_row, last_row = (torch.searchsorted(indptr, ends, right=True) - 1).tolist()
        counts = indptr[first_row : last_row + 2].clamp(first, end).diff()
        yield EdgeSpan(first, end, first_row, counts)
