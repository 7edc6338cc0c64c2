"""Edges with hubs, sorted through the disk and by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from khop.graph.atomic import Meter
from khop.graph.build import write_edges
from khop.graph.edge_runs import EdgeChunk, EdgePlan, EdgeRuns, spill
from khop.graph.folder_writer import FolderWriter
from khop.graph.npy import ArrayEntry

SMALL, LARGE = 1 << 16, 1 << 30
EDGE_TYPE = ("user", "buys", "item")
HOME = "edges/user__buys__item"


def edges_with_hubs(count: int, num_destinations: int, seed: int) -> EdgeChunk:
    """Return edges of which a half end at one node and a quarter, with equal times, at another."""
    random = np.random.default_rng(seed)
    destinations = random.integers(num_destinations, size=count)
    destinations[random.random(count) < 0.5] = num_destinations // 2
    destinations[random.random(count) < 0.25] = num_destinations - 1
    times = random.integers(0, 1 << 40, count)
    times[random.random(count) < 0.3] = 7
    times[destinations == num_destinations - 1] = 5
    columns = {
        "time": times,
        "price": random.random(count).astype(np.float32),
        "x": random.integers(9, size=(count, 3)),
    }
    return EdgeChunk(random.integers(50, size=count), destinations, columns)


def plan_of(chunk: EdgeChunk, num_destinations: int, **more: Any) -> EdgePlan:  # noqa: ANN401
    columns = {name: (values.dtype.name, values.shape[1:]) for name, values in chunk.columns.items()}
    return EdgePlan(EDGE_TYPE, 50, num_destinations, columns, **more)


def pieces(chunk: EdgeChunk, step: int) -> Iterator[Callable[[], Sequence[EdgeChunk]]]:
    for first in range(0, len(chunk), step):
        part = slice(first, first + step)
        columns = {name: values[part] for name, values in chunk.columns.items()}
        times = None if chunk.times is None else chunk.times[part]
        yield partial(list, [EdgeChunk(chunk.sources[part], chunk.destinations[part], columns, times)])


def written(
    folder: Path, chunk: EdgeChunk, plan: EdgePlan, memory: int, threads: int, step: int
) -> tuple[dict[str, ArrayEntry], dict[str, np.ndarray]]:
    runs = EdgeRuns(folder / "runs", plan, memory, threads)
    spill([runs], pieces(chunk, step))
    writer = FolderWriter(folder, Meter(0))
    write_edges(runs, writer)
    runs.close()
    arrays = {
        file.removeprefix(f"{HOME}/").removesuffix(".npy"): np.load(folder / file) for file in writer.arrays
    }
    assert sorted(path.name for path in folder.iterdir()) == ["edges"]
    return writer.arrays, arrays


def expected(chunk: EdgeChunk, plan: EdgePlan) -> dict[str, np.ndarray]:
    """Return the arrays by a stable sort of NumPy."""
    times = [chunk.columns["time"]] if plan.sort_by else []
    order = np.lexsort((*times, chunk.destinations))
    degrees = np.bincount(chunk.destinations, minlength=plan.num_destinations)
    arrays = {"indptr": np.append(0, np.cumsum(degrees)), "indices": chunk.sources[order].astype(np.int32)}
    arrays |= {f"columns/{name}": chunk.columns[name][order] for name in plan.columns}
    if plan.columns and not np.array_equal(order, np.arange(len(order))):
        arrays["edge_id"] = order.astype(np.int32)
    return arrays
