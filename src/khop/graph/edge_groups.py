"""Spilled edges, sorted in memory group by group: consecutive destinations whose edges fit in the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from khop.graph.edge_runs import DESTINATION, POSITION, SOURCE, EdgePlan, EdgeRuns
from khop.graph.spill import Field, Place, Ranges, Spill
from khop.kernels.build_csc import build_csc, group_by_destination
from khop.kernels.csc import Csc
from khop.kernels.deal_edges import MOST_EDGES, take_rows
from khop.kernels.sort_rows import sort_rows

LEAST_GROUP = 1 << 10
_SORT_BYTES = 14  # per edge, besides fields and their sorted copies: scratch of the counting sort
_ORDER_BYTES = 28  # positions of edges, kept during the sort
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
        """Choose groups so that as many as are at work fit in the budget."""
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
        """Deal the rows of one range to finer ranges, or to ranges of another key, in a file of their own."""
        finer = self.scratch_spill(spill.fields, key, ranges)
        for rows in spill.pieces(number, self.most):
            finer.append(rows)
        return finer

    def scratch_spill(self, fields: Sequence[Field], key: str, ranges: Ranges) -> Spill:
        """Return an empty file of rows that ends with this work."""
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
    """Return the fields that sorted edges have; the row of an edge says its destination."""
    return [field for field in spill.fields if field.name != DESTINATION]


def _sorted_by_time(spill: Spill, times: str, first: int, end: int) -> SortedEdges:
    order = np.argsort(spill.read(times, first, end), kind="stable").astype(np.uint32)
    fields = {each.name: take_rows(spill.read(each.name, first, end), order) for each in kept_fields(spill)}
    return SortedEdges(_NO_DEGREES, fields)


def _unsorted(spill: Spill, place: Place) -> SortedEdges:
    return SortedEdges(
        _NO_DEGREES, {each.name: spill.read_places(each.name, [place]) for each in kept_fields(spill)}
    )
