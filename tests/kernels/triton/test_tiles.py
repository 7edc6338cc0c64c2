"""Tiles cover every number of a matrix once, for any width."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.kernels.triton.launch import launch
from khop.kernels.triton.tiles import MOST_COLUMNS, Tiles, row_span, tile
from support.triton_rows import DEVICE


@triton.jit
def count_visits(
    visits: tl.tensor, rows: tl.tensor, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    row, column = tile(WIDTH, ROWS, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    tl.atomic_add(visits + row[:, None] * WIDTH + column[None, :], 1, mask=inside)


@triton.jit
def spans(indptr: tl.tensor, out: tl.tensor, rows: tl.tensor, BLOCK: tl.constexpr) -> None:
    row = tl.arange(0, BLOCK)
    begin, count = row_span(indptr, row, row < rows)
    tl.store(out + 2 * row, begin)
    tl.store(out + 2 * row + 1, count)


@settings(max_examples=8)
@given(rows=st.integers(1, 40), width=st.integers(1, 600), item_bytes=st.sampled_from([2, 4, 8]))
def test_every_number_is_of_one_tile(rows: int, width: int, item_bytes: int) -> None:
    tiles = Tiles.of(width, item_bytes)
    visits = torch.zeros(rows, width, dtype=torch.int32, device=DEVICE)
    launch(count_visits, tiles.programs(rows), visits, visits, rows, **tiles.constants)
    assert (visits == 1).all()


@given(width=st.integers(1, 5000), item_bytes=st.sampled_from([2, 4, 8]), loads=st.sampled_from([1, 2, 4]))
def test_tiles_are_powers_of_two_within_their_limit(width: int, item_bytes: int, loads: int) -> None:
    tiles = Tiles.of(width, item_bytes, loads)
    for size in (tiles.rows, tiles.columns):
        assert size & (size - 1) == 0
    assert tiles.columns == min(MOST_COLUMNS, triton.next_power_of_2(width))


@pytest.mark.parametrize("rows", [0, 3])
def test_spans_of_rows_outside_are_empty(rows: int) -> None:
    indptr = torch.tensor([0, 2, 2, 7], device=DEVICE)
    out = torch.full((8,), -1, device=DEVICE)
    launch(spans, 1, indptr, indptr, out, rows, BLOCK=4)
    expected = [0, 2, 2, 0, 2, 5, 0, 0] if rows else [0] * 8
    assert out.tolist() == expected
