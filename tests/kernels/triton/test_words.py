"""Words of draws on the device are those of docs/randomness.md in Python's integers.

Picks of rows, in registers and as a tile: the same operations on lists.
"""

from __future__ import annotations

from bisect import bisect_right

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.kernels.philox import signed
from khop.kernels.triton.launch import launch
from khop.kernels.triton.words import (
    NO_PICK,
    first_above,
    four_words,
    is_picked,
    mix64,
    narrow_draw,
    next_pick,
    no_picks,
    weight_of_picks,
    wide_draw,
    with_pick,
)
from khop.testing.reference import MASK64, Row, philox
from khop.testing.reference import mix64 as plain_mix64
from support.examples import few
from support.triton_rows import DEVICE

WORDS = st.integers(0, MASK64)
FEW = settings(max_examples=few(4))


@triton.jit
def words_of(
    keys: tl.tensor, ids: tl.tensor, stream: tl.tensor, number: tl.tensor, bound: tl.tensor, out: tl.tensor
) -> None:
    at = tl.arange(0, 4)
    key = tl.load(keys + at).to(tl.uint64, bitcast=True)
    node = tl.load(ids + at).to(tl.uint64, bitcast=True)
    draw = tl.load(number + at)
    below = tl.load(bound + at)
    w0, w1, w2, w3 = four_words(key, node, stream, (draw >> 2).to(tl.uint32))
    tl.store(out + at, w0.to(tl.int64))
    tl.store(out + 4 + at, w1.to(tl.int64))
    tl.store(out + 8 + at, w2.to(tl.int64))
    tl.store(out + 12 + at, w3.to(tl.int64))
    tl.store(out + 16 + at, narrow_draw(key, node, stream, draw, below))
    tl.store(out + 20 + at, wide_draw(key, node, stream, draw, below))
    tl.store(out + 24 + at, mix64(key).to(tl.int64, bitcast=True))


@triton.jit
def searched(
    values: tl.tensor, begin: tl.tensor, end: tl.tensor, bound: tl.tensor, out: tl.tensor, rows: tl.tensor
) -> None:
    at = tl.arange(0, 4)
    live = at < rows
    low, high = tl.load(begin + at), tl.load(end + at)
    tl.store(out + at, first_above(values, None, low, high, tl.load(bound + at), live))


def tensor(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@FEW
@given(
    keys=st.lists(WORDS, min_size=4, max_size=4),
    ids=st.lists(st.integers(0, (1 << 63) - 1), min_size=4, max_size=4),
    stream=st.integers(0, (1 << 31) - 1),
    number=st.lists(st.integers(0, 1000), min_size=4, max_size=4),
    bound=st.lists(st.integers(1, 1 << 20), min_size=4, max_size=4),
)
def test_draws_are_those_of_the_specification(
    keys: list[int], ids: list[int], stream: int, number: list[int], bound: list[int]
) -> None:
    out = torch.zeros(28, dtype=torch.int64, device=DEVICE)
    given_keys, given_numbers = tensor([signed(key) for key in keys]), tensor(number, torch.int32)
    launch(words_of, 1, out, given_keys, tensor(ids), stream, given_numbers, tensor(bound), out)
    found = out.view(7, 4).T.tolist()
    for row in range(4):
        low, high = ids[row] & 0xFFFFFFFF, ids[row] >> 32
        block = philox(keys[row], (low, high, stream, number[row] // 4))
        narrow = block[number[row] % 4] * bound[row] >> 32
        pairs = philox(keys[row], (low, high, stream, number[row] // 2))
        wide = pairs[number[row] % 2 * 2] | pairs[number[row] % 2 * 2 + 1] << 32
        expected = [*block, narrow, wide * bound[row] >> 64, signed(plain_mix64(keys[row]))]
        assert found[row] == expected
        assert Row(keys[row], ids[row], stream, 9).word(number[row]) == block[number[row] % 4]


@FEW
@given(
    values=st.lists(st.integers(-5, 5), max_size=20).map(sorted),
    ranges=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=4, max_size=4),
    bounds=st.lists(st.integers(-6, 6), min_size=4, max_size=4),
    rows=st.integers(0, 4),
)
def test_the_search_is_a_bisection(
    values: list[int], ranges: list[tuple[int, int]], bounds: list[int], rows: int
) -> None:
    spans = [tuple(sorted(min(end, len(values)) for end in pair)) for pair in ranges]
    begin, end = tensor([low for low, _ in spans]), tensor([high for _, high in spans])
    out = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    launch(searched, 1, out, tensor([*values, 0]), begin, end, tensor(bounds), out, rows)
    for row in range(rows):
        assert out[row] == bisect_right(values, bounds[row], *spans[row])


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
    tl.store(out + row * 3 * K + 2 * K, weight_of_picks(picks, sums, None, begin, begin, live, K, TILED))


@pytest.mark.parametrize("tiled", [False, True])
@settings(max_examples=few(4))
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
