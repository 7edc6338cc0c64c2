"""Picks of rows, in registers and as a tile: the same operations on lists."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.kernels.triton.launch import launch
from khop.kernels.triton.picks import NO_PICK, is_picked, next_pick, no_picks, weight_of_picks, with_pick
from support.triton_rows import DEVICE

K = 4


@triton.jit
def picked(drawn: tl.tensor, sums: tl.tensor, out: tl.tensor, K: tl.constexpr, TILED: tl.constexpr) -> None:
    """Take K picks of four rows, then write if they had them, the smallest above each, and their weight."""
    row = tl.arange(0, 4)
    live = row < 3
    picks = no_picks(K, TILED, 4)
    for place in tl.static_range(K):
        pick = tl.load(drawn + row * K + place)
        had = is_picked(picks, pick, K, TILED)
        tl.store(out + row * 3 * K + place, had.to(tl.int64))
        picks = with_pick(picks, pick, row * 0 + place, live, K, TILED)
    last = tl.full([4], -1, tl.int32)
    for place in tl.static_range(K):
        last = next_pick(picks, last, K, TILED)
        tl.store(out + row * 3 * K + K + place, last.to(tl.int64))
    begin = row.to(tl.int64) * 8
    tl.store(out + row * 3 * K + 2 * K, weight_of_picks(picks, sums, begin, begin, live, K, TILED))


@pytest.mark.parametrize("tiled", [False, True])
@settings(max_examples=10)
@given(drawn=st.lists(st.lists(st.integers(0, 7), min_size=K, max_size=K), min_size=4, max_size=4))
def test_picks_are_those_of_lists(tiled: bool, drawn: list[list[int]]) -> None:
    weights = torch.arange(1, 33).view(4, 8)
    sums = weights.cumsum(1).flatten().to(DEVICE)
    out = torch.full((4, 3 * K), -9, dtype=torch.int64, device=DEVICE)
    given_picks = torch.tensor(drawn, dtype=torch.int32, device=DEVICE)
    launch(picked, 1, out, given_picks, sums, out, K=K, TILED=tiled)
    for row, picks in enumerate(drawn):
        is_live = row < 3
        had, rising, weight = out[row].tolist()[:K], out[row].tolist()[K : 2 * K], int(out[row, 2 * K])
        assert had == [int(is_live and pick in picks[:place]) for place, pick in enumerate(picks)]
        distinct = sorted(set(picks)) if is_live else []
        assert rising == distinct + [int(NO_PICK)] * (K - len(distinct))
        assert weight == (sum(int(weights[row, pick]) for pick in picks) if is_live else 0)
