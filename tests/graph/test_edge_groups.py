"""Groups of destinations: the budget decides their number, hubs are divided, and order is kept."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.support.spilled_edges import LARGE, SMALL, edges_with_hubs, pieces, plan_of

from khop.graph.edge_groups import Grouping
from khop.graph.edge_runs import SOURCE, EdgeRuns, spill


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
