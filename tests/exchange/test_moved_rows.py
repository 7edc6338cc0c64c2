"""Rows between ranks, here of one rank to itself; tests/processes has several."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.exchange import moved_rows
from khop.exchange.moved_rows import moved, rounds, sent_to_all
from khop.exchange.peers import Message, open_peers
from khop.runtime.group import ALONE

MESSAGE = Message("getting rows", "row")
DTYPES = st.sampled_from([torch.bool, torch.int16, torch.int64, torch.float32, torch.bfloat16])


@given(count=st.integers(0, 5), shape=st.lists(st.integers(1, 3), max_size=2), dtype=DTYPES)
def test_rows_arrive_with_dtype_and_shape_and_outlive_the_next_exchange(
    count: int, shape: list[int], dtype: torch.dtype
) -> None:
    peers = open_peers(ALONE)
    rows = torch.arange(count * torch.Size(shape).numel()).view(count, *shape).to(dtype)
    (found,) = moved(peers, [rows], MESSAGE)
    (again,) = sent_to_all(peers, torch.ones_like(rows), MESSAGE)
    assert torch.equal(found, rows)
    assert torch.equal(again, torch.ones_like(rows))


def test_rounds_cover_every_row_once() -> None:
    peers = open_peers(ALONE)
    for count in (0, 1, moved_rows._AT_ONCE, 2 * moved_rows._AT_ONCE + 1):
        slices = list(rounds(peers, count, MESSAGE))
        assert [turn.start for turn in slices[1:]] == [turn.stop for turn in slices[:-1]]
        assert all(turn.stop - turn.start <= moved_rows._AT_ONCE for turn in slices)
        assert not slices or (slices[0].start, slices[-1].stop) == (0, count)
        assert bool(slices) is (count > 0)
