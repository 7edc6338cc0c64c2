"""Edges with the same source and destination, reduced to one, within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.edge_groups import Grouping
from khop.graph.edge_runs import DESTINATION, POSITION, SOURCE, EdgePlan, EdgeRuns
from khop.graph.spill import Ranges, Rows, Spill

Arrays = dict[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]


def without_duplicates(runs: EdgeRuns, opened: ExitStack) -> EdgeRuns:
    """Return the edges with one of each (source, destination, parts), in a file that `opened` closes.

    "first" and "last" follow the time, then the input. "sum" keeps the last, with the sums of all columns
    but the time and the plan's `parts`. "refuse" raises ValueError for the first pair.
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
    """Yield what remains of one destination with more edges than fit, in order of the input.

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
    """Yield the rows of a file by its key, as many at a time as fit, or those of one value."""
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
        np.add.at(sums, pair, values)  # one after the other: the order of a sum of floats is part of it
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
