"""Rows in use and their edges, read on the device; other rows have none."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.kernels.triton.launch import launch
from khop.kernels.triton.rows import Rows, Slots, draw_ids, row_edges
from support.triton_rows import DEVICE


@triton.jit
def edges_of(
    indptr: tl.tensor,
    nodes: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    num_rows: tl.tensor,
    originals: tl.tensor,
    out: tl.tensor,
) -> None:
    rows = tl.arange(0, 8)
    live, node, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    tl.store(out + 3 * rows, tl.where(live, begin, -1))
    tl.store(out + 3 * rows + 1, tl.where(live, end, -1))
    ids = draw_ids(originals, node, live).to(tl.int64, bitcast=True)
    tl.store(out + 3 * rows + 2, tl.where(live, ids, -1))


INDPTR = [0, 2, 2, 5, 9]


@settings(max_examples=12)
@given(
    nodes=st.lists(st.integers(-2, 6), min_size=8, max_size=8),
    count=st.integers(0, 8),
    has_ranges=st.booleans(),
    has_originals=st.booleans(),
)
def test_rows_in_use_have_their_edges_and_nodes_outside_none(
    nodes: list[int], count: int, has_ranges: bool, has_originals: bool
) -> None:
    def tensor(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    ranges = tensor([number for row in range(8) for number in (row, row + 2)]) if has_ranges else None
    originals = tensor([70, 71, 72, 73]) if has_originals else None
    out = torch.zeros(24, dtype=torch.int64, device=DEVICE)
    in_use = tensor([count], torch.int32)
    launch(edges_of, 1, out, tensor(INDPTR), tensor(nodes), ranges, in_use, 4, originals, out)
    for row, (node, found) in enumerate(zip(nodes, out.view(8, 3).tolist(), strict=True)):
        if row >= count or not 0 <= node < 4:
            assert found == [-1, -1, -1]
            continue
        span = [row, row + 2] if has_ranges else INDPTR[node : node + 2]
        assert found == [*span, 70 + node if has_originals else node]


def test_a_stream_is_an_int32_with_the_same_bits() -> None:
    none = torch.empty(0, dtype=torch.int64)
    for stream in (0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
        rows = Rows(torch.zeros(3, dtype=torch.int64), none, none, stream)
        assert (rows.capacity, rows.signed_stream & 0xFFFFFFFF) == (3, stream)
        assert -(1 << 31) <= rows.signed_stream < 1 << 31


def test_slots_have_room_for_every_draw_of_every_row() -> None:
    slots = Slots.empty(5, 3, torch.int32, torch.empty(0, device=DEVICE))
    assert (slots.ids.shape, slots.ids.dtype) == ((15,), torch.int32)
    assert (slots.counts.shape, slots.edges) == ((5,), None)
