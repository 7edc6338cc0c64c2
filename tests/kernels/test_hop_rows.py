"""The frontier of a hop: its edges and its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.hop_rows import HopRows
from khop.testing.reference import mix64

CSC = Csc(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1]), 3)
ROWS = HopRows(torch.tensor([2, 0, 2]), DrawKey((1 << 64) - 3), stream=7)
MASK = (1 << 64) - 1


def as_words(keys: list[int]) -> list[list[int]]:
    return [[key & 0xFFFFFFFF, key >> 32] for key in keys]


def test_a_row_draws_from_its_edges_or_from_its_range() -> None:
    begin, end = ROWS.bounds(CSC)
    assert (begin.tolist(), end.tolist()) == ([2, 0, 2], [5, 2, 5])
    begin, end = replace(ROWS, ranges=torch.tensor([3, 5, 0, 0, 2, 4])).bounds(CSC)
    assert (begin.tolist(), end.tolist()) == ([3, 0, 2], [5, 0, 4])


def test_rows_share_the_key_and_trees_have_their_own() -> None:
    assert ROWS.keys().tolist() == as_words([MASK - 2] * 3)
    trees = replace(ROWS, tree=torch.tensor([0, 5, 0]))
    assert trees.keys().tolist() == as_words([mix64((MASK - 2) ^ mix64(tree)) for tree in (0, 5, 0)])


def test_counters_have_the_original_ids() -> None:
    assert ROWS.ids().tolist() == [2, 0, 2]
    assert replace(ROWS, original_ids=torch.tensor([10, 11, 12])).ids().tolist() == [12, 10, 12]


def test_a_node_that_is_no_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"frontier node 3: not in \[0, 3\)"):
        replace(ROWS, nodes=torch.tensor([0, 3])).bounds(CSC)
