"""Rows that lie elsewhere are kept or asked for once, of who has them, and land where they are wanted."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.row_question import question

BOUNDS = [0, 4, 4, 10, 15]  # rank 0 asks itself for the first four, rank 1 for nothing


@given(wanted=st.lists(st.integers(4, 14), max_size=20), kept=st.sets(st.integers(4, 14)))
def test_every_row_comes_from_who_has_it(wanted: list[int], kept: set[int]) -> None:
    ids = torch.tensor(wanted, dtype=torch.int64)
    at = torch.arange(len(wanted)) * 2 + 1  # what is held here stands between
    slots = torch.tensor([id_ if id_ in kept else -1 for id_ in wanted], dtype=torch.int64)
    asked = question("n", ("x",), at, ids, BOUNDS, slots)
    out = torch.full((2 * len(wanted),), -5.0)
    out.index_copy_(0, asked.kept_at, asked.slots.float())
    for rank in range(4):
        request = asked.request(rank, BOUNDS[rank])
        of_rank = sorted({id_ for id_ in wanted if BOUNDS[rank] <= id_ < BOUNDS[rank + 1]} - kept)
        assert (request.ids + BOUNDS[rank]).tolist() == of_rank
        asked.place(rank, request.ids.float() + BOUNDS[rank], out)
    assert out[at].tolist() == wanted
    assert out[::2].tolist() == [-5.0] * len(wanted)
