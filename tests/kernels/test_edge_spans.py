"""Pieces of edges are all edges, in order, each with its row."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.edge_spans import edge_spans


@given(degrees=st.lists(st.integers(0, 9), max_size=30), most=st.integers(1, 12))
def test_spans_have_all_edges_once_with_their_rows(degrees: list[int], most: int) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    rows = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees, dtype=torch.int64))
    found, end = [], 0
    for span in edge_spans(indptr, most):
        assert (span.first, span.end - span.first <= most) == (end, True)
        of_span = span.per_edge(torch.arange(len(degrees))[span.rows])
        assert torch.equal(of_span, rows[span.first : span.end])
        found.append(of_span)
        end = span.end
    assert end == sum(degrees)
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.int64), *found]), rows)
