"""External sort of edges by destination, within a memory budget.

Edges are spilled in runs. Groups of consecutive destinations are then sorted in memory, and edges with the
same source and destination are reduced to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.atomic import in_order
from khop.graph.npy import STORED
from khop.graph.spill import Field, Place, Ranges, Rows, Spill
from khop.kernels.csc import Csc, build_csc, group_by_destination
from khop.kernels.edge_arrays import MOST_EDGES, sort_rows, take_rows
from khop.schema import EdgeType

Times = Literal["column", "given"]
Duplicates = Literal["keep", "first", "last", "sum", "refuse"]
SOURCE, DESTINATION, POSITION, TIMES = "#source", "#destination", "#position", "#times"  # no column's name
LEAST_RUN = 1 << 12
MOST_RUN = 1 << 24
_INT32_IDS = 1 << 31


@dataclass(frozen=True, eq=False)
class EdgeChunk:
    """Consecutive edges of the input."""

    sources: npt.NDArray[Any]  # int32 or int64 (edges), ids in range
    destinations: npt.NDArray[Any]
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # (edges, ...)
    times: npt.NDArray[np.int64] | None = None  # to sort by, if it is not a column of the plan

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class EdgePlan:
    """Plan for sorting edges: their type, counts of nodes, columns and order.

    The edges of one destination are sorted by the column `sort_by`, or by the times of the chunks if no
    column has that name or `times` is "given"; "" keeps the order of the input. Edges with equal times keep
    it, too. Edges are duplicates only if the values of each column in `parts` lie between the same bounds,
    the lower one included. These columns are not summed.
    """

    edge_type: EdgeType
    num_sources: int
    num_destinations: int
    columns: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # dtype, row shape
    sort_by: str = ""
    duplicates: Duplicates = "keep"
    times: Times = "column"  # "given": from the chunks, even if a column has the name
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by integer column: its bounds
    edge_id: Tensor | None = None  # the numbers to store as `edge_id`; None: positions in the input

    @property
    def time_field(self) -> str:
        """Field to sort by; "" for none."""
        if self.sort_by in self.columns and self.times == "column":
            return self.sort_by
        return TIMES if self.sort_by else ""

    @property
    def source_dtype(self) -> str:
        """Dtype of `indices`."""
        return "int32" if self.num_sources <= _INT32_IDS else "int64"

    def fields(self, position: str) -> tuple[Field, ...]:
        """Return the fields of a row on disk; `position` is the dtype of input positions."""
        ends = (
            Field(DESTINATION, "int32" if self.num_destinations <= _INT32_IDS else "int64"),
            Field(SOURCE, self.source_dtype),
        )
        has_positions = bool(self.columns) or self.duplicates != "keep"
        positions = (Field(POSITION, position),) if has_positions else ()
        times = (Field(TIMES, "int64"),) if self.time_field == TIMES else ()
        columns = tuple(Field(name, STORED[dtype], shape) for name, (dtype, shape) in self.columns.items())
        return (*ends, *positions, *times, *columns)


class EdgeRuns:
    """The edges of one type on disk, by ranges of destinations: `spill` fills it, `write_edges` sorts it."""

    def __init__(self, path: Path, plan: EdgePlan, memory: int, threads: int) -> None:
        self.path, self.plan, self.memory, self.threads = path, plan, memory, threads
        self.count = 0
        self.spill = Spill(path, plan.fields("int64"), DESTINATION, Ranges.of(0, plan.num_destinations))

    @property
    def run_edges(self) -> int:
        """Edges of one run: as many as fit in the budget, with their dealt copy, on every thread."""
        bytes_each = 2 * self.spill.row_bytes + 12
        most = self.memory // (bytes_each * 2 * (self.threads + 2))
        return min(MOST_RUN, max(LEAST_RUN, most))

    def rows(self, chunks: Sequence[EdgeChunk], position: int) -> dict[str, npt.NDArray[Any]]:
        """Join chunks into the rows of a run; `position` is the first edge's."""
        plan, rows = self.plan, dict[str, npt.NDArray[Any]]()
        rows[DESTINATION] = _joined([chunk.destinations for chunk in chunks])
        rows[SOURCE] = _joined([chunk.sources for chunk in chunks])
        names = {field.name for field in self.spill.fields}
        if POSITION in names:
            rows[POSITION] = np.arange(position, position + len(rows[SOURCE]))
        if TIMES in names:
            rows[TIMES] = _joined([_times(chunk, plan) for chunk in chunks])
        for name in plan.columns:
            rows[name] = _joined([chunk.columns[name] for chunk in chunks])
        return rows

    def save(self) -> dict[str, int]:
        """Flush to disk for a later process; return the state for `load`."""
        self.spill.save()
        return {"count": self.count}

    def load(self, state: Mapping[str, int]) -> None:
        """Restore the state written by `save`."""
        self.spill.load()
        self.count = state["count"]

    def close(self) -> None:
        """Remove the file."""
        self.spill.close()


def spill(targets: Sequence[EdgeRuns], tasks: Iterable[Callable[[], Sequence[EdgeChunk]]]) -> None:
    """Write the edges of all tasks to disk. A task returns one chunk for each target.

    Tasks run on threads, and their results are taken in order: the position of an edge is the number of
    edges before it.
    """
    threads = targets[0].threads if targets else 1
    batches = _batches(targets, in_order(tasks, threads))
    for target, run in in_order((partial(_dealt, *batch) for batch in batches), threads):
        target.spill.runs.keep(run)


_Batch = tuple[EdgeRuns, list[EdgeChunk], int, int]  # chunks, position of the first edge, place in the file


def _batches(targets: Sequence[EdgeRuns], results: Iterator[Sequence[EdgeChunk]]) -> Iterator[_Batch]:
    """Yield chunks grouped into runs."""
    pending: list[list[EdgeChunk]] = [[] for _ in targets]
    for chunks in results:
        for target, waiting, chunk in zip(targets, pending, chunks, strict=True):
            for piece in _cut(chunk, target.run_edges):
                waiting.append(piece)
                if sum(map(len, waiting)) >= target.run_edges:
                    yield _batch(target, waiting)
    for target, waiting in zip(targets, pending, strict=True):
        if waiting:
            yield _batch(target, waiting)


def _batch(target: EdgeRuns, waiting: list[EdgeChunk]) -> _Batch:
    chunks, edges = list(waiting), sum(map(len, waiting))
    waiting.clear()
    position = target.count
    target.count += edges
    return target, chunks, position, target.spill.runs.reserve(edges)


def _dealt(target: EdgeRuns, chunks: list[EdgeChunk], position: int, place: int) -> Any:  # noqa: ANN401
    return target, target.spill.write(place, target.rows(chunks, position))


def _cut(chunk: EdgeChunk, most: int) -> Iterator[EdgeChunk]:
    if len(chunk) <= most:
        yield from [chunk] if len(chunk) else []
        return
    for first in range(0, len(chunk), most):
        part = slice(first, first + most)
        columns = {name: values[part] for name, values in chunk.columns.items()}
        times = None if chunk.times is None else chunk.times[part]
        yield EdgeChunk(chunk.sources[part], chunk.destinations[part], columns, times)


def _times(chunk: EdgeChunk, plan: EdgePlan) -> npt.NDArray[np.int64]:
    if chunk.times is None:
        raise ValueError(
            f"edge type {plan.edge_type}: edges are sorted by {plan.sort_by!r}: give their times"
        )
    return chunk.times


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


LEAST_GROUP = 1 << 10
_SORT_BYTES = 14  # per edge, besides fields and their sorted copies: scratch of the counting sort
_ORDER_BYTES = 28  # positions of edges during the sort
_TIME_BYTES = 36
_ROW_BYTES = 24


@dataclass(frozen=True, eq=False)
class SortedEdges:
    """Consecutive edges in their final order, and the degrees of the rows that begin with them."""

    degrees: npt.NDArray[np.int64]
    fields: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # all but destinations


_NO_DEGREES = np.empty(0, np.int64)
Task = Callable[[], SortedEdges]


@dataclass(frozen=True)
class Grouping:
    """Sizes of the groups of one edge type, and the files of rows that had to be divided further."""

    plan: EdgePlan
    most: int  # edges of a group
    most_rows: int
    scratch: Path
    opened: ExitStack

    @classmethod
    def of(cls, runs: EdgeRuns, opened: ExitStack) -> Grouping:
        """Choose groups so that all concurrent sorts fit in the budget."""
        row_bytes = runs.spill.row_bytes
        names = {field.name for field in runs.spill.fields}
        each = 2 * row_bytes + _SORT_BYTES + (_ORDER_BYTES if POSITION in names else 0)
        each += _TIME_BYTES if runs.plan.time_field else 0
        at_work = runs.memory // (runs.threads + 2)
        most = max(LEAST_GROUP, min(MOST_EDGES - 1, at_work // (2 * each)))
        return cls(runs.plan, most, max(LEAST_GROUP, at_work // (2 * _ROW_BYTES)), runs.path, opened)

    def tasks(self, spill: Spill) -> Iterator[Task]:
        """Yield the tasks that sort all edges, in order of their destinations."""
        ranges, counts = spill.ranges, spill.counts()
        for first, end in ranges.grouped(counts, self.most, self.most_rows):
            edges = int(counts[first:end].sum())
            if edges <= self.most:
                yield partial(_sorted_group, spill, self.plan, first, end)
            elif ranges.shift > 0:
                yield from self.tasks(self.divided(spill, first, DESTINATION, ranges.within(first)))
            else:
                yield partial(SortedEdges, np.array([edges]))
                yield from self._tasks_of_row(spill, first)

    def _tasks_of_row(self, spill: Spill, number: int) -> Iterator[Task]:
        """Yield the tasks of one destination with more edges than fit: in input order, or by time."""
        times = self.plan.time_field
        if not times:
            yield from self._as_they_lie(spill, number)
            return
        by_time = spill
        if spill.key != times:
            by_time = self.divided(spill, number, times, _extent(spill, number, times, self.most))
        counts = by_time.counts()
        for first, end in by_time.ranges.grouped(counts, self.most, MOST_EDGES**2):
            if int(counts[first:end].sum()) <= self.most:
                yield partial(_sorted_by_time, by_time, times, first, end)
            elif by_time.ranges.shift > 0:
                finer = self.divided(by_time, first, times, by_time.ranges.within(first))
                yield from self._tasks_of_row(finer, 0)
            else:
                yield from self._as_they_lie(by_time, first)

    def _as_they_lie(self, spill: Spill, number: int) -> Iterator[Task]:
        for place in spill.runs.places(number, self.most):
            yield partial(_unsorted, spill, place)

    def divided(self, spill: Spill, number: int, key: str, ranges: Ranges) -> Spill:
        """Divide the rows of one range into finer ranges, or ranges of another key, in a separate file."""
        finer = self.scratch_spill(spill.fields, key, ranges)
        for rows in spill.pieces(number, self.most):
            finer.append(rows)
        return finer

    def scratch_spill(self, fields: Sequence[Field], key: str, ranges: Ranges) -> Spill:
        """Return an empty temporary file of rows."""
        spill = Spill(self.scratch.with_name(f"{self.scratch.name}.divided"), fields, key, ranges)
        spill.path.unlink()  # the open file remains
        self.opened.callback(spill.close)
        return spill


def _extent(spill: Spill, number: int, name: str, most: int) -> Ranges:
    """Return the ranges from the least to the greatest value of a field in one range of rows."""
    extremes = [(int(rows[name].min()), int(rows[name].max())) for rows in spill.pieces(number, most)]
    return Ranges.of(min(low for low, _ in extremes), max(high for _, high in extremes) + 1)


def _sorted_group(spill: Spill, plan: EdgePlan, first: int, end: int) -> SortedEdges:
    begin, stop = spill.ranges.begin(first), spill.ranges.begin(end)
    csc, order = _csc(spill, plan, first, end, begin, stop)
    fields = {SOURCE: csc.indices.numpy()}
    degrees = np.diff(csc.indptr.numpy())
    if order is not None:
        for each in kept_fields(spill):
            if each.name != SOURCE:
                fields[each.name] = take_rows(spill.read(each.name, first, end), order)
    return SortedEdges(degrees, fields)


def _csc(
    spill: Spill, plan: EdgePlan, first: int, end: int, begin: int, stop: int
) -> tuple[Csc, npt.NDArray[np.uint32] | None]:
    """Sort the edges of some ranges; also return their order, if any field follows it."""
    sources = torch.from_numpy(spill.read(SOURCE, first, end))
    destinations = torch.from_numpy(spill.read(DESTINATION, first, end) - begin).to(sources.dtype)
    if len(kept_fields(spill)) == 1:
        return group_by_destination(sources, destinations, plan.num_sources, stop - begin), None
    csc, order = build_csc(sources, destinations, plan.num_sources, stop - begin)
    del sources, destinations
    if plan.time_field:
        times = torch.from_numpy(spill.read(plan.time_field, first, end)).long()
        csc, moved = sort_rows(csc, times[order])
        order = order[moved]
    return csc, order.numpy().astype(np.uint32)


def kept_fields(spill: Spill) -> list[Field]:
    """Return the fields of sorted edges; the row of an edge is its destination."""
    return [field for field in spill.fields if field.name != DESTINATION]


def _sorted_by_time(spill: Spill, times: str, first: int, end: int) -> SortedEdges:
    order = np.argsort(spill.read(times, first, end), kind="stable").astype(np.uint32)
    fields = {each.name: take_rows(spill.read(each.name, first, end), order) for each in kept_fields(spill)}
    return SortedEdges(_NO_DEGREES, fields)


def _unsorted(spill: Spill, place: Place) -> SortedEdges:
    return SortedEdges(
        _NO_DEGREES, {each.name: spill.read_places(each.name, [place]) for each in kept_fields(spill)}
    )


Arrays = dict[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]


def without_duplicates(runs: EdgeRuns, opened: ExitStack) -> EdgeRuns:
    """Return the edges with one of each (source, destination, parts), in a file that `opened` closes.

    "first" and "last" follow the time, then the input. "sum" keeps the last, with sums of all columns except
    the time and the plan's `parts`. "refuse" raises ValueError for the first pair.
    """
    kept = EdgeRuns(runs.path.with_name(f"{runs.path.name}.single"), runs.plan, runs.memory, runs.threads)
    opened.callback(kept.close)
    grouping = Grouping.of(runs, opened)
    for rows in _reduced(grouping, runs.spill, runs.count):
        kept.spill.append(rows)
        kept.count += len(rows[SOURCE])
    return kept


def _reduced(grouping: Grouping, spill: Spill, count: int) -> Iterator[Arrays]:
    ranges, counts = spill.ranges, spill.counts()
    for first, end in ranges.grouped(counts, grouping.most, grouping.most_rows):
        if int(counts[first:end].sum()) <= grouping.most:
            yield reduced(_read(spill, first, end), grouping.plan)
        elif ranges.shift > 0:
            finer = grouping.divided(spill, first, DESTINATION, ranges.within(first))
            yield from _reduced(grouping, finer, count)
        else:
            yield from _reduced_row(grouping, spill, first, count)


def _reduced_row(grouping: Grouping, spill: Spill, number: int, count: int) -> Iterator[Arrays]:
    """Yield the remaining edges of a destination with more edges than fit, in order of the input.

    Its edges are reduced by ranges of sources, and then brought back into order by ranges of positions. Only
    the edges of one pair have to fit in memory.
    """
    by_position = grouping.scratch_spill(spill.fields, POSITION, Ranges.of(0, count))
    by_source = grouping.divided(spill, number, SOURCE, Ranges.of(0, grouping.plan.num_sources))
    for rows in _groups(grouping, by_source):
        by_position.append(reduced(rows, grouping.plan))
    for rows in _groups(grouping, by_position):
        yield _taken(rows, np.argsort(rows[POSITION]))


def _groups(grouping: Grouping, spill: Spill) -> Iterator[Arrays]:
    """Yield the rows of a file by its key, in chunks that fit, or all rows of one value."""
    counts = spill.counts()
    for first, end in spill.ranges.grouped(counts, grouping.most, 1 << 62):
        if int(counts[first:end].sum()) > grouping.most and spill.ranges.shift > 0:
            yield from _groups(
                grouping, grouping.divided(spill, first, spill.key, spill.ranges.within(first))
            )
        else:
            yield _read(spill, first, end)


def _read(spill: Spill, first: int, end: int) -> Arrays:
    return {field.name: spill.read(field.name, first, end) for field in spill.fields}


def reduced(rows: Rows, plan: EdgePlan) -> Arrays:
    """Return one edge of each pair and part, in the order of the input."""
    times = [rows[plan.time_field]] if plan.time_field else []
    parts = [np.searchsorted(bounds, rows[name], "right") for name, bounds in plan.parts.items() if bounds]
    keys = (*parts, rows[SOURCE], rows[DESTINATION])
    order = np.lexsort((rows[POSITION], *times, *keys))
    begins = np.ones(len(order), bool)
    begins[1:] = np.logical_or.reduce([key[order[1:]] != key[order[:-1]] for key in keys])
    firsts = np.flatnonzero(begins)
    kept = _REDUCE[plan.duplicates](rows, order, firsts, plan)
    return _taken(kept, np.argsort(kept[POSITION]))


def _first(rows: Rows, order: Int64s, firsts: Int64s, plan: EdgePlan) -> Arrays:
    return _taken(rows, order[firsts])


def _last(rows: Rows, order: Int64s, firsts: Int64s, plan: EdgePlan) -> Arrays:
    return _taken(rows, order[np.append(firsts[1:], len(order))[: len(firsts)] - 1])


def _sum(rows: Rows, order: Int64s, firsts: Int64s, plan: EdgePlan) -> Arrays:
    kept = _last(rows, order, firsts, plan)
    pair = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(order))))
    for name in plan.columns:
        if name == plan.time_field or name in plan.parts:
            continue
        values = rows[name][order]
        wide = np.float64 if np.issubdtype(values.dtype, np.floating) else np.int64
        sums = np.zeros((len(firsts), *values.shape[1:]), wide)
        np.add.at(sums, pair, values)  # sequential: the result of a float sum depends on the order
        kept[name] = sums.astype(values.dtype)
    return kept


def _refuse(rows: Rows, order: Int64s, firsts: Int64s, plan: EdgePlan) -> Arrays:
    if len(firsts) == len(order):
        return dict(rows)
    twice = np.setdiff1d(np.arange(len(order)), firsts)[0]
    one, other = sorted(int(rows[POSITION][order[at]]) for at in (twice - 1, twice))
    source, destination = int(rows[SOURCE][order[twice]]), int(rows[DESTINATION][order[twice]])
    raise ValueError(
        f"edge type {plan.edge_type}: edges {one:,} and {other:,} both lead from node {source} to node "
        f'{destination}; remove one, or set duplicates = "keep", "first", "last" or "sum"'
    )


_REDUCE: dict[str, Callable[[Rows, Int64s, Int64s, EdgePlan], Arrays]] = {
    "first": _first,
    "last": _last,
    "sum": _sum,
    "refuse": _refuse,
}


def _taken(rows: Rows, order: Int64s) -> Arrays:
    return {name: values[order] for name, values in rows.items()}
