"""Numbers of edges of a row that have the same relation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from khop.kernels.csc import Csc

_AT_ONCE = 1 << 22  # edges in memory as int64
_SPAN = 1 << 31  # relations of rows that are counted without a sort of their own
_MOST = (1 << 31) - 1


def relation_counts(csc: Csc, relations: Tensor) -> Tensor:
    """Return for each edge the number of edges of its row with its relation, int32 (edges).

    `relations` are integers of any sign, (edges). ValueError for a count above 2^31 - 1.
    """
    csc.check_rows()
    indptr, found = csc.indptr, torch.empty_like(csc.indices, dtype=torch.int32)
    for first, last in _groups(indptr.diff()):
        ends = indptr[first : last + 1]
        begin, end = int(ends[0]), int(ends[-1])
        edges = torch.arange(begin, end, device=indptr.device)
        counts = counts_in_ranges(relations, ends[:-1], ends[1:], edges, ends - begin)
        if counts.numel() and int(counts.max()) > _MOST:
            raise ValueError(
                f"{int(counts.max()):,} edges of one relation in a row: must be at most {_MOST:,}"
            )
        found[begin:end] = counts
    return found


def counts_in_ranges(relations: Tensor, begin: Tensor, end: Tensor, edges: Tensor, offsets: Tensor) -> Tensor:
    """Return for some edges of rows the number of edges of the row's range with their relation, int64.

    Row i has the range [begin[i], end[i]) of the graph's edges, of which
    `edges[offsets[i]:offsets[i + 1]]` are asked for. All tensors but `relations` are int64. All edges of the
    ranges are read.
    """
    found = torch.empty(edges.numel(), dtype=torch.int64, device=edges.device)
    for first, last in _groups(end - begin):
        asked = slice(int(offsets[first]), int(offsets[last]))
        if int(end[first] - begin[first]) > _AT_ONCE:
            values, counts = _of_long_row(relations[int(begin[first]) : int(end[first])])
            for piece, out in zip(edges[asked].split(_AT_ONCE), found[asked].split(_AT_ONCE), strict=True):
                out.copy_(counts[torch.searchsorted(values, relations[piece].long())])
            continue
        begins, sizes = begin[first:last], end[first:last] - begin[first:last]
        befores = sizes.cumsum(0) - sizes  # edges of the rows before
        rows = torch.repeat_interleave(sizes)
        shifts = begins - befores
        every = relations[torch.arange(rows.numel(), device=rows.device) + shifts[rows]].long()
        of_edges = torch.repeat_interleave(offsets[first : last + 1].diff())
        found[asked] = _counted(rows, every)[edges[asked] - shifts[of_edges]]
    return found


def _groups(sizes: Tensor) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with at most `_AT_ONCE` edges together, or one row with more."""
    ends, first = sizes.cumsum(0), 0
    while first < sizes.numel():
        before = int(ends[first] - sizes[first])
        last = int(torch.searchsorted(ends, before + _AT_ONCE, right=True))
        yield first, max(last, first + 1)
        first = max(last, first + 1)


def _counted(rows: Tensor, relations: Tensor) -> Tensor:
    """Return for each edge the number of edges with its row and relation."""
    if not rows.numel():
        return rows
    low, high = relations.min(), relations.max()
    if int(high) - int(low) >= _SPAN:
        relations = relations.unique(return_inverse=True)[1]
        low, high = relations.min(), relations.max()
    keys = rows * (high - low + 1) + (relations - low)
    _, numbers, counts = keys.unique(return_inverse=True, return_counts=True)
    of_edges: Tensor = counts[numbers]
    return of_edges


def _of_long_row(relations: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relations of one row in ascending order, and the number of edges of each."""
    pieces = [piece.long().unique(return_counts=True) for piece in relations.split(_AT_ONCE)]
    values, numbers = torch.cat([of_piece for of_piece, _ in pieces]).unique(return_inverse=True)
    counts = torch.zeros_like(values)
    return values, counts.index_add_(0, numbers, torch.cat([of_piece for _, of_piece in pieces]))
