"""One edge of each pair of nodes, for any threads, budget and chunks."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.graph.edge_runs import EdgeChunk, EdgePlan
from support.spilled_edges import EDGE_TYPE, LARGE, SMALL, edges_with_hubs, expected, plan_of, written


@settings(max_examples=10)
@given(
    st.sampled_from(["first", "last", "sum"]),
    st.sampled_from(["", "time"]),
    st.sampled_from([(), (6, 1 << 39)]),
    st.integers(0, 2**32),
)
def test_one_edge_of_each_pair_and_part_remains(
    duplicates: str, sort_by: str, bounds: tuple[int, ...], seed: int
) -> None:
    chunk = edges_with_hubs(9000, 40, seed)
    plan = plan_of(chunk, 40, sort_by=sort_by, duplicates=duplicates, parts={"time": bounds})
    kept = one_of_each(chunk, duplicates, sort_by, bounds)
    right = expected(kept, plan)
    right.pop("edge_id", None)
    for memory, threads, step in ((SMALL, 2, 4000), (LARGE, 1, 100_000)):
        with TemporaryDirectory() as folder:
            _, arrays = written(Path(folder), chunk, plan, memory, threads, step)
        assert arrays.keys() == right.keys()
        for name, values in right.items():
            assert np.array_equal(arrays[name], values), name


def one_of_each(chunk: EdgeChunk, duplicates: str, sort_by: str, bounds: tuple[int, ...]) -> EdgeChunk:
    """Reduce duplicates with a dict of Python."""
    pairs: dict[tuple[int, int, int], list[int]] = {}
    times = chunk.columns["time"].tolist()
    for at, pair in enumerate(zip(chunk.sources.tolist(), chunk.destinations.tolist(), strict=True)):
        pairs.setdefault((*pair, sum(times[at] >= bound for bound in bounds)), []).append(at)
    for edges in pairs.values():
        edges.sort(key=lambda at: (chunk.columns["time"][at] if sort_by else 0, at))
    kept = sorted(edges[0 if duplicates == "first" else -1] for edges in pairs.values())
    columns = {name: values[kept].copy() for name, values in chunk.columns.items()}
    if duplicates == "sum":
        of_kept = {edges[-1]: edges for edges in pairs.values()}
        for name in set(columns) - {"time"}:
            wide = np.float64 if name == "price" else np.int64
            for row, at in enumerate(kept):
                total = np.zeros(chunk.columns[name].shape[1:], wide)
                for edge in of_kept[at]:
                    total = total + chunk.columns[name][edge]
                columns[name][row] = total
    return EdgeChunk(chunk.sources[kept], chunk.destinations[kept], columns)


@pytest.mark.parametrize("memory", [SMALL, LARGE])
def test_refused_duplicates_name_both_edges(memory: int, tmp_path: Path) -> None:
    sources, destinations = np.arange(9000) % 3001, np.zeros(9000, np.int64)
    plan = EdgePlan(EDGE_TYPE, 3001, 4, duplicates="refuse")
    with pytest.raises(ValueError, match="edges 0 and 3,001 both lead from node 0 to node 0; remove one"):
        written(tmp_path, EdgeChunk(sources, destinations), plan, memory, 1, 500)
