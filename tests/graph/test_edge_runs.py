"""Edges on their way to the disk: chunks of any size, several types in one pass, a restart.

Groups of destinations: the budget decides their number, hubs are divided, and order is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from khop.graph.atomic import Meter
from khop.graph.build import write_edges
from khop.graph.edge_runs import SOURCE, EdgeChunk, EdgePlan, EdgeRuns, Grouping, spill
from khop.graph.folder_writer import FolderWriter
from support.spilled_edges import (
    EDGE_TYPE,
    HOME,
    LARGE,
    SMALL,
    edges_with_hubs,
    expected,
    pieces,
    plan_of,
    written,
)


def test_times_of_sources_sort_edges_without_columns(tmp_path: Path) -> None:
    times = np.array([3, 1, 2, 0])
    chunk = EdgeChunk(np.array([0, 1, 2, 3]), np.array([1, 1, 1, 0]), times=times)
    plan = EdgePlan(EDGE_TYPE, 4, 2, sort_by="time", times="given")
    _, arrays = written(tmp_path, chunk, plan, LARGE, 1, 2)
    assert arrays["indices"].tolist() == [3, 1, 2, 0]
    with pytest.raises(ValueError, match="are sorted by 'time': give their times"):
        written(tmp_path, replace(chunk, times=None), plan, LARGE, 1, 2)


def test_one_pass_feeds_an_edge_type_and_its_reverse(tmp_path: Path) -> None:
    chunk = edges_with_hubs(6000, 60, 3)
    there = EdgeRuns(tmp_path / "there", plan_of(chunk, 60), SMALL, 2)
    back = EdgeRuns(tmp_path / "back", replace(plan_of(chunk, 50), num_sources=60), SMALL, 2)
    turned = EdgeChunk(chunk.destinations, chunk.sources, chunk.columns)
    both = [
        partial(list, [a()[0], b()[0]]) for a, b in zip(pieces(chunk, 700), pieces(turned, 700), strict=True)
    ]
    spill([there, back], both)
    for runs, name in ((there, "there"), (back, "back")):
        writer = FolderWriter(tmp_path / f"{name}-graph", Meter(0))
        write_edges(runs, writer)
        arrays = np.load(writer.folder / HOME / "indices.npy")
        given = chunk if name == "there" else turned
        assert np.array_equal(arrays, given.sources[np.argsort(given.destinations, kind="stable")])
        runs.close()


def test_a_later_process_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    chunk = edges_with_hubs(9000, 3000, 1)
    plan = plan_of(chunk, 3000, sort_by="time")
    runs = EdgeRuns(tmp_path / "runs", plan, SMALL, 2)
    spill([runs], pieces(chunk, 800))
    state = runs.save()
    again = EdgeRuns(tmp_path / "runs", plan, LARGE, 1)
    again.load(state)
    writer = FolderWriter(tmp_path / "graph", Meter(0))
    write_edges(again, writer)
    right = expected(chunk, plan)
    for name, values in right.items():
        assert np.array_equal(np.load(tmp_path / "graph" / HOME / f"{name}.npy"), values)


def test_a_failed_task_ends_the_work_with_its_error(tmp_path: Path) -> None:
    def fail() -> Sequence[EdgeChunk]:
        raise ValueError("row 7 is damaged")

    runs = EdgeRuns(tmp_path / "runs", EdgePlan(EDGE_TYPE, 1, 1), SMALL, 2)
    with pytest.raises(ValueError, match="row 7 is damaged"):
        spill([runs], [fail])
    runs.close()


@pytest.mark.parametrize("sort_by", ["", "time"])
@pytest.mark.parametrize("memory", [SMALL, LARGE])
def test_no_group_exceeds_its_size_even_with_hubs(memory: int, sort_by: str, tmp_path: Path) -> None:
    chunk = edges_with_hubs(12_000, 5000, 1)
    runs = EdgeRuns(tmp_path / "runs", plan_of(chunk, 5000, sort_by=sort_by), memory, 1)
    spill([runs], pieces(chunk, 3000))
    with ExitStack() as opened:
        grouping = Grouping.of(runs, opened)
        groups = [task() for task in grouping.tasks(runs.spill)]
    edges = [len(group.fields[SOURCE]) for group in groups if group.fields]
    assert sum(edges) == 12_000
    assert max(edges) <= grouping.most
    assert len(edges) == 1 if memory == LARGE else len(edges) >= 12
    degrees = np.concatenate([group.degrees for group in groups])
    assert np.array_equal(degrees, np.bincount(chunk.destinations, minlength=5000))
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    runs.close()
