"""Write edges into a graph folder by a sort on disk, if a sort in memory would exceed the budget.

Edges come in chunks. Each edge type has a plan and a file of runs: the chunks, grouped by destination. An
edge type and its reverse are made from the same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from khop.graph.edge_runs import EdgeChunk, EdgePlan, EdgeRuns, Times, spill
from khop.graph.folder_writer import FolderWriter
from khop.graph.inputs import Given
from khop.graph.manifest import EdgeEntry
from khop.graph.row_order import INPUT
from khop.graph.write_edges import write_edges
from khop.schema import EdgeType

CHUNK_EDGES = 1 << 20
SORT_BYTES = 2  # per edge, beside its source id: the destination within its block
ORDER_BYTES = 16  # with columns: the position of each edge and its copy


def memory_of(count: int, source_bytes: int, columns: Mapping[str, Given], sort_by: str) -> int:
    """Return the memory that the edges of a type take when they are sorted in memory."""
    each = source_bytes + SORT_BYTES
    if columns:
        each += ORDER_BYTES
    if sort_by != INPUT:
        each += 3 * ORDER_BYTES
    return count * each


def write_through_disk(
    plans: Sequence[EdgePlan],
    reverses: Sequence[EdgeType | None],
    tasks: Iterable[Callable[[], Sequence[EdgeChunk]]],
    writer: FolderWriter,
    memory: int,
    threads: int,
) -> list[EdgeEntry]:
    """Write an edge type, and its reverse if there are two plans; return their entries for graph.json.

    `reverses` names the reverse of each type, and `tasks` read the chunks, one for each plan. The files of
    runs are in the folder until the end.
    """
    targets: list[EdgeRuns] = []
    try:
        for number, plan in enumerate(plans):
            path = writer.folder / f"edges-{number}.runs"
            targets.append(EdgeRuns(path, plan, memory // len(plans), threads))
        writer.meter.at(f"reading edges of {'__'.join(plans[0].edge_type)}")
        spill(targets, tasks)
        entries = []
        for runs, reverse_of in zip(targets, reverses, strict=True):
            entries.append(write_edges(runs, writer, reverse_of))
        return entries
    finally:
        for runs in targets:
            runs.close()


def plan_of(
    edge_type: EdgeType,
    counts: Mapping[str, int],
    columns: Mapping[str, Given],
    sort_by: str,
    source_times: Tensor | None,
) -> EdgePlan:
    """Return the plan of edges with given columns; `sort_by` is "input" for their own order."""
    specs = {name: (column.dtype, column.values.shape[1:]) for name, column in columns.items()}
    by = "" if sort_by == INPUT else sort_by
    times: Times = "column" if source_times is None else "given"
    return EdgePlan(edge_type, counts[edge_type[0]], counts[edge_type[2]], specs, by, times=times)


def chunk_tasks(
    sources: Given,
    destinations: Given,
    columns: Mapping[str, Given],
    sort_by: str,
    source_times: Sequence[Tensor | None],
) -> Iterator[Callable[[], Sequence[EdgeChunk]]]:
    """Yield tasks that read the next edges of arrays, as one chunk for each plan: as given, then reversed.

    `source_times` has, for each plan, the times of its source nodes, or None.
    """
    for first in range(0, len(sources), CHUNK_EDGES):
        part = slice(first, first + CHUNK_EDGES)
        yield partial(_chunks, part, (sources, destinations), columns, sort_by, source_times)


def _chunks(
    part: slice,
    ends: tuple[Given, Given],
    columns: Mapping[str, Given],
    sort_by: str,
    source_times: Sequence[Tensor | None],
) -> Sequence[EdgeChunk]:
    sources, destinations = (_ids(given.values[part]) for given in ends)
    values = {name: column.values[part] for name, column in columns.items()}
    directions = ((sources, destinations), (destinations, sources))
    return [
        EdgeChunk(start, end, values, _later(start, values.get(sort_by), times))
        for (start, end), times in zip(directions, source_times, strict=False)
    ]


def _later(
    sources: npt.NDArray[Any], own_times: npt.NDArray[Any] | None, source_times: Tensor | None
) -> npt.NDArray[np.int64] | None:
    """Return the later of the times of edges and of their sources."""
    if source_times is None:
        return None
    times: npt.NDArray[np.int64] = source_times.numpy()[sources].astype(np.int64)
    if own_times is not None:
        np.maximum(times, own_times, out=times)
    return times


def _ids(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    dtype = np.int32 if values.dtype == np.int32 else np.int64
    return np.ascontiguousarray(values, dtype)
