"""Edges of any number, sorted by destination through the disk, within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.graph.npy import STORED
from khop.graph.parallel_tasks import in_order
from khop.graph.spill import Field, Ranges, Spill
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
    times: npt.NDArray[np.int64] | None = None  # to sort by, if it is no column of the plan

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class EdgePlan:
    """Edges to come: their type, counts of nodes, columns and order.

    The edges of one destination are sorted by the column `sort_by`, or by the times of the chunks if no
    column has that name or `times` is "given"; "" keeps the order of the input. Equal times keep it, too.
    Edges are duplicates only if the values of each column in `parts` lie between the same bounds, the lower
    one included. These columns are not added.
    """

    edge_type: EdgeType
    num_sources: int
    num_destinations: int
    columns: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # dtype, row shape
    sort_by: str = ""
    duplicates: Duplicates = "keep"
    times: Times = "column"  # "given": by the chunks, also beside a column of the name
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by integer column: its bounds

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
        """Join chunks to the rows of a run; `position` is the first edge's."""
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
        """Take what `save` left."""
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
    """Yield as many chunks at a time as make a run."""
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
