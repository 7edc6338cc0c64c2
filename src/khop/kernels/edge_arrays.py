"""Operations on arrays of edges: sorting, removal, running sums of weights, co-occurrence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import khop._core as _core
from khop.draw import Neighbors
from khop.kernels.csc import Csc, check_int64, naming_damage
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.memory import pooled
from khop.kernels.node_index import NodeIndex

Order = npt.NDArray[np.uint32]
MOST_EDGES = 1 << 32  # positions are 32-bit


def deal_edges(
    destinations: npt.NDArray[Any], first: int, shift: int, ranges: int
) -> tuple[npt.NDArray[np.int64], Order]:
    """Group edges by range: return offsets (ranges + 1), and the positions of edges in input order per range.

    Range r holds the destinations first + [r * 2^shift, (r + 1) * 2^shift). ValueError for a destination
    outside.
    """
    if len(destinations) > MOST_EDGES:
        raise ValueError(f"{len(destinations):,} edges: must be at most {MOST_EDGES:,} per call")
    begin, order = np.empty(ranges + 1, np.int64), np.empty(len(destinations), np.uint32)
    outside = _core.deal_edges(np.ascontiguousarray(destinations), first, shift, begin, order)
    if outside >= 0:
        last = first + (ranges << shift)
        raise ValueError(
            f"destination {destinations[outside]} at position {outside}: must be in [{first}, {last})"
        )
    return begin, order


def take_rows(table: npt.NDArray[Any], order: Order) -> npt.NDArray[Any]:
    """Return table[order]; faster than NumPy for 32-bit positions."""
    table = np.ascontiguousarray(table)
    out = np.empty((len(order), *table.shape[1:]), table.dtype)
    row_bytes = out.nbytes // len(order) if len(order) else 0
    if row_bytes:
        _core.take_rows(_as_bytes(table), row_bytes, order, _as_bytes(out))
    return out


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


def insert_rows(table: Array, at: Int64s, added: Array) -> Array:
    """Return the rows of a table with row i of `added` before row `at[i]`; `at` ascends.

    Added rows with the same position keep their order. Like `numpy.insert`, but as fast as a copy.
    ValueError for positions that descend, or are outside the table.
    """
    if table.dtype != added.dtype or table.shape[1:] != added.shape[1:]:
        raise ValueError(
            f"rows of {added.dtype} {added.shape[1:]} inserted into {table.dtype} {table.shape[1:]}"
        )
    out = np.empty((len(table) + len(added), *table.shape[1:]), table.dtype)
    row_bytes = int(np.prod(table.shape[1:], dtype=np.int64)) * table.itemsize
    if row_bytes:
        _core.insert_rows(
            _rows_as_bytes(table),
            row_bytes,
            np.ascontiguousarray(at),
            _rows_as_bytes(added),
            _rows_as_bytes(out),
        )
    return out


def _rows_as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def known_edges(index: NodeIndex, found: Neighbors) -> tuple[Tensor, Tensor, Tensor]:
    """Select the edges from nodes of `index`: offsets int64, sources as int32 local ids, and edge ids int64.

    Rows and the order within them are kept. `found` must have edge ids. Runs without the GIL.
    """
    if found.edges is None or found.edges.numel() != found.nodes.numel():
        raise ValueError(f"{found.nodes.numel()} edges without an edge id each: sample with edge_ids")
    return _core.known_edges(
        index.core, found.offsets.contiguous(), found.nodes.contiguous(), found.edges.contiguous()
    )


def cooccurrences(there: Csc, back: Csc, min_count: int, *, threads: int = 1) -> tuple[Csc, Tensor]:
    """Count the two-step paths between different rows of `there`; return pairs with at least `min_count`.

    A path goes from a row to one of its entries, and then to an entry of that entry's row in `back`; parallel
    edges are separate paths. Indices ascend within a row. The second value is the number of paths, int32
    (pairs), at most 2^31 - 1. Besides the result it takes 8 bytes per row, and 8 more per thread (16 above
    2^31 rows).
    """
    if min_count < 1:
        raise ValueError(f"min_count {min_count}: must be at least 1")
    if there.indices.device.type != "cpu":
        return cooccurrences_reference(there, back, min_count)
    dtype = torch.promote_types(there.indices.dtype, back.indices.dtype)
    indptr, indices, counts = _core.cooccurrences(
        there.indptr, there.indices.to(dtype), back.indptr, back.indices.to(dtype), min_count, threads
    )
    return Csc(indptr, indices.to(back.indices.dtype)), counts


def cooccurrences_reference(there: Csc, back: Csc, min_count: int) -> tuple[Csc, Tensor]:
    """The same as `cooccurrences` in plain torch, on any device. Lists every path in memory."""
    rows = torch.repeat_interleave(there.indptr.diff())
    middles = there.indices.long()
    degrees = back.indptr.diff()[middles]
    ways = torch.repeat_interleave(degrees)  # the first step of each path
    offsets = torch.arange(ways.numel(), device=ways.device) - (degrees.cumsum(0) - degrees)[ways]
    ends = back.indices[back.indptr[middles[ways]] + offsets].long()
    pairs, counts = torch.unique(rows[ways] * there.num_rows + ends, return_counts=True)
    rows, ends = pairs // max(there.num_rows, 1), pairs % max(there.num_rows, 1)
    kept = (counts >= min_count) & (rows != ends)
    per_row = torch.bincount(rows[kept], minlength=there.num_rows)
    indptr = torch.cat([per_row.new_zeros(1), per_row.cumsum(0)])
    return Csc(indptr, ends[kept].to(back.indices.dtype)), counts[kept].int()


def exclude_edges(found: Neighbors, rows: Tensor, excluded: Tensor) -> Neighbors:
    """Remove from `found` the edges with ends in a column of `excluded`, int64 (2, pairs), sources first.

    `rows` are the destinations, int64 (frontier). All parallel edges between two such ends are removed. The
    other edges keep their order. Runs without the GIL.
    """
    _check(found, rows, excluded)
    excluded = excluded.to(rows.device)
    if rows.device.type != "cpu":
        return exclude_edges_reference(found, rows, excluded)
    if found.weights is None and found.times is None:
        return Neighbors(*_kept(found, found.edges, rows, excluded))
    # With positions as ids, the core returns the positions of the edges' other values.
    offsets, nodes, kept = _kept(found, torch.arange(found.nodes.numel()), rows, excluded)
    assert kept is not None
    values = (None if v is None else v[kept] for v in (found.edges, found.weights, found.times))
    return Neighbors(offsets, nodes, *values)


def _kept(
    found: Neighbors, ids: Tensor | None, rows: Tensor, excluded: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return offsets, sources and ids of the edges to keep."""
    kept: tuple[Tensor, Tensor, Tensor | None] = _core.exclude_edges(
        found.offsets.contiguous(),
        found.nodes.contiguous(),
        None if ids is None else ids.contiguous(),
        rows.contiguous(),
        excluded[0].contiguous(),
        excluded[1].contiguous(),
    )
    return kept


def exclude_edges_reference(found: Neighbors, rows: Tensor, excluded: Tensor) -> Neighbors:
    """The same as `exclude_edges` in plain torch, on any device."""
    lengths = found.offsets.diff()
    row_of_edge = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), lengths)
    drawn = torch.stack([found.nodes.long(), rows[row_of_edge]])
    _, numbers = torch.unique(torch.cat([excluded, drawn], dim=1), dim=1, return_inverse=True)
    pairs = excluded.shape[1]
    keep = ~torch.isin(numbers[pairs:], numbers[:pairs])
    kept_per_row = torch.bincount(row_of_edge[keep], minlength=rows.numel())
    offsets = torch.cat([kept_per_row.new_zeros(1), kept_per_row.cumsum(0)])
    values = (None if v is None else v[keep] for v in (found.edges, found.weights, found.times))
    return Neighbors(offsets, found.nodes[keep], *values)


def _check(found: Neighbors, rows: Tensor, excluded: Tensor) -> None:
    if excluded.dtype != torch.int64 or excluded.dim() != 2 or excluded.shape[0] != 2:
        raise ValueError(f"excluded is {excluded.dtype} {tuple(excluded.shape)}: must be int64 (2, pairs)")
    if rows.dtype != torch.int64 or found.offsets.shape != (rows.numel() + 1,):
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)}: must be int64 ({found.offsets.numel() - 1}), "
            "one for each row of the draw"
        )


_EXACT_IN_FLOAT = (torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.uint8, torch.bool)


def weight_sums(csc: Csc, weights: Tensor, *, threads: int = 1) -> Tensor:
    """Return for each edge the sum of the row's integer weights up to and including it, int64 (edges).

    The largest weight of a row is scaled to a 32-bit number. The others are scaled equally, rounded down,
    and at least 1 unless they are 0: see docs/randomness.md for the bits. ValueError names a weight that is
    negative or not finite, with its position.
    """
    if weights.shape != (csc.num_edges,) or weights.device != csc.indptr.device:
        given = f"weights are {weights.dtype} {tuple(weights.shape)} on {weights.device}"
        raise ValueError(f"{given}: must be numbers ({csc.num_edges}) on {csc.indptr.device}")
    if weights.dtype not in (torch.float32, torch.float64):
        weights = weights.float() if weights.dtype in _EXACT_IN_FLOAT else weights.double()
    if csc.indptr.device.type == "cpu":
        sums = pooled((csc.num_edges,), torch.int64)
        with naming_damage(csc.home):
            position = _core.weight_sums(csc.indptr, weights.contiguous(), sums, threads)
    else:
        sums, position = weight_sums_reference(csc, weights)
    if position >= 0:
        raise ValueError(
            f"weight {float(weights[position])} at position {position}: must be a finite number, 0 or more; "
            "correct the column and write the graph again"
        )
    return sums


def weight_sums_reference(csc: Csc, weights: Tensor) -> tuple[Tensor, int]:
    """The same as `weight_sums` in NumPy, with the position of the first bad weight, or -1."""
    numbers = weights.double().cpu().numpy()
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if bad.size:
        return torch.empty(0), int(bad[0])
    ends = csc.indptr.cpu().numpy()
    sums = np.zeros(numbers.size, np.int64)
    for begin, end in pairwise(ends):
        row = numbers[begin:end]
        _, exponent = np.frexp(row.max(initial=0))
        whole = np.floor(np.ldexp(row, 32 - exponent)).astype(np.int64)
        sums[begin:end] = np.cumsum(np.where(row > 0, np.maximum(whole, 1), 0))
    return torch.from_numpy(sums).to(csc.indptr.device), -1


_AT_ONCE = 1 << 22  # edges in memory as int64
_SPAN = 1 << 31  # relations of rows that are counted without a separate sort
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
    """Return for some edges the number of edges with the same relation in their row's range, int64.

    Row i has the range [begin[i], end[i]) of the graph's edges; the result is for its edges
    `edges[offsets[i]:offsets[i + 1]]`. All tensors except `relations` are int64. Reads all edges of the
    ranges.
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
        befores = sizes.cumsum(0) - sizes  # edges of earlier rows
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


_MAGNITUDE = (1 << 63) - 1
_VALUES_AT_ONCE = 1 << 22  # values in memory as float64


def descending_keys(values: Tensor) -> Tensor:
    """Return int64 sort keys: smaller for a larger value, equal for equal values.

    Integers and floating-point numbers are compared exactly. ValueError names a value that is NaN.
    """
    keys = torch.empty(values.shape, dtype=torch.int64, device=values.device)
    for start in range(0, values.numel(), _VALUES_AT_ONCE):
        keys[start : start + _VALUES_AT_ONCE] = _keys(values[start : start + _VALUES_AT_ONCE], start)
    return keys


def _keys(values: Tensor, start: int) -> Tensor:
    if not values.is_floating_point():
        return ~values.long()
    numbers = values.double() + 0.0  # turns -0.0 into 0.0
    wrong = numbers.isnan().nonzero()
    if wrong.numel():
        raise ValueError(
            f"nan at position {start + int(wrong[0, 0])}: must be a number; correct the column and write the "
            "graph again"
        )
    bits = numbers.view(torch.int64)
    return ~torch.where(bits < 0, bits ^ _MAGNITUDE, bits)


def parallel_rows(csc: Csc, *, threads: int = 1) -> Tensor:
    """Return for each row 1 if some of its edges have the same source, else 0: uint8 (rows)."""
    if csc.indptr.device.type != "cpu":
        return parallel_rows_reference(csc)
    found = torch.empty(csc.num_rows, dtype=torch.uint8)
    with naming_damage(csc.home):
        _core.find_parallel_rows(csc.core, found, threads)
    return found


def parallel_rows_reference(csc: Csc) -> Tensor:
    """The same as `parallel_rows` in plain torch, on any device."""
    rows, sources = csc.destinations(), csc.indices
    ordered = sources.argsort(stable=True)
    ordered = ordered[rows[ordered].argsort(stable=True)]
    repeats = (rows[ordered].diff() == 0) & (sources[ordered].diff() == 0)
    found = torch.zeros(csc.num_rows, dtype=torch.uint8, device=csc.indptr.device)
    found[rows[ordered][1:][repeats]] = 1
    return found


def sort_rows(csc: Csc, times: Tensor, *, threads: int = 1) -> tuple[Csc, Tensor]:
    """Sort every row by `times` (int64, one per edge); equal times keep their order.

    The second value is an int64 permutation, new position -> old position.
    """
    check_int64("times", times, csc.num_edges, csc.indptr.device)
    if csc.indptr.device.type == "cpu":
        order = pooled((csc.num_edges,), torch.int64)
        with naming_damage(csc.home):
            _core.sort_rows(csc.indptr, times.contiguous(), order, threads)
    else:
        order = sort_rows_reference(csc, times)
    return replace(csc, indices=csc.indices[order], home=""), order


def sort_rows_reference(csc: Csc, times: Tensor) -> Tensor:
    """Return the permutation of `sort_rows` in plain torch, on any device."""
    by_time = torch.argsort(times, stable=True)
    return by_time[torch.argsort(csc.destinations()[by_time], stable=True)]


def first_unsorted(csc: Csc, times: Tensor | EdgeTimes, *, threads: int = 1) -> int:
    """Return the first position with a time earlier than the one before it in its row, or -1."""
    if isinstance(times, Tensor):
        check_int64("times", times, csc.num_edges, csc.indptr.device)
        times = EdgeTimes(times)
    times.check(csc)
    if csc.indptr.device.type == "cpu":
        with naming_damage(csc.home):
            return _core.first_unsorted(csc.indptr, times.core(csc), threads)
    return first_unsorted_reference(csc, times.of(csc))


def first_unsorted_reference(csc: Csc, times: Tensor) -> int:
    """The same as `first_unsorted` in plain torch, on any device."""
    falls = (times[1:] < times[:-1]) & (csc.destinations().diff() == 0)
    positions = falls.nonzero()
    return int(positions[0, 0]) + 1 if positions.numel() else -1
