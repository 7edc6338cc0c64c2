"""Times of edges: the edge's own, its source's, or the later of both."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.kernels.edge_times import EdgeTimes, whole_numbers

TIMES = st.integers(-100, 100)
DTYPES = st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8])


def csc_of(sources: list[int], num_sources: int) -> Csc:
    """One row with an edge from each source."""
    return Csc(torch.tensor([0, len(sources)]), torch.tensor(sources, dtype=torch.int64), num_sources)


@given(
    data=st.lists(st.tuples(st.integers(0, 4), TIMES), max_size=12),
    of_nodes=st.lists(TIMES, min_size=5, max_size=5),
    dtype=DTYPES,
)
def test_the_later_time_counts(data: list[tuple[int, int]], of_nodes: list[int], dtype: torch.dtype) -> None:
    csc = csc_of([source for source, _ in data], 5)
    own, sources = torch.tensor([time for _, time in data], dtype=dtype), torch.tensor(of_nodes, dtype=dtype)
    for times in (EdgeTimes(own), EdgeTimes(None, sources), EdgeTimes(own, sources)):
        times.check(csc)
    assert EdgeTimes(own).of(csc).tolist() == [time for _, time in data]
    assert EdgeTimes(None, sources).of(csc).tolist() == [of_nodes[source] for source, _ in data]
    assert EdgeTimes(own, sources).of(csc).tolist() == [max(of_nodes[s], time) for s, time in data]
    assert EdgeTimes(own, sources).of(csc).dtype == torch.int64


def test_times_that_do_not_fit_the_edges_are_refused() -> None:
    csc = csc_of([0, 1], 2)
    for edges, problem in ((torch.tensor([1]), "int64"), (torch.tensor([1.0, 2.0]), "float32")):
        with pytest.raises(ValueError, match=rf"times of edges are torch.{problem}.*must be whole numbers"):
            EdgeTimes(edges).check(csc)
    with pytest.raises(ValueError, match="neither edges nor sources"):
        EdgeTimes(None).check(csc)


def test_columns_that_no_kernel_reads_become_int64() -> None:
    assert whole_numbers(torch.tensor([1, 2], dtype=torch.int16)).dtype == torch.int16
    assert whole_numbers(torch.tensor([True, False])).tolist() == [1, 0]
