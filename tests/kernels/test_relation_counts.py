"""Edges of a row by relation are counted as NumPy counts them, in pieces of any size."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels import relation_counts as module
from khop.kernels.csc import Csc
from khop.kernels.relation_counts import counts_in_ranges, relation_counts

RELATION = st.sampled_from([0, 1, 2, -3, 1 << 40, -(1 << 62)])


@given(
    rows=st.lists(st.lists(RELATION, max_size=9), max_size=8),
    at_once=st.integers(1, 12),
    data=st.data(),
)
def test_counts_are_those_of_numpy(rows: list[list[int]], at_once: int, data: st.DataObject) -> None:
    relations = torch.tensor([each for row in rows for each in row], dtype=torch.int64)
    indptr = torch.tensor([0, *np.cumsum([len(row) for row in rows], dtype=int).tolist()])
    csc = Csc(indptr, torch.zeros(relations.numel(), dtype=torch.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        found = relation_counts(csc, relations)
        expected = [int(np.count_nonzero(np.array(row) == each)) for row in rows for each in row]
        assert (found.dtype, found.tolist()) == (torch.int32, expected)
        # Ranges of some rows, repeated and in any order, and some of their edges.
        chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=6)) if rows else []
        begin, end, edges, offsets, expected = [], [], list[int](), [0], []
        for row in chosen:
            first, last = indptr[row : row + 2].tolist()
            begin.append(data.draw(st.integers(first, last)))
            end.append(data.draw(st.integers(begin[-1], last)))
            there = range(begin[-1], end[-1])
            asked = data.draw(st.lists(st.sampled_from(there), max_size=4)) if there else []
            counts = Counter(relations[begin[-1] : end[-1]].tolist())
            edges, offsets = edges + asked, [*offsets, len(edges) + len(asked)]
            expected += [counts[int(relations[edge])] for edge in asked]
        numbers = [torch.tensor(each, dtype=torch.int64) for each in (begin, end, edges, offsets)]
        assert counts_in_ranges(relations, *numbers).tolist() == expected


def test_more_edges_than_a_number_of_32_bits_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    csc = Csc(torch.tensor([0, 3]), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="3 edges of one relation in a row: must be at most 2"):
        relation_counts(csc, torch.zeros(3, dtype=torch.uint8))
