"""Rows gathered by Triton, cached or not, have the bits of the CPU core."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.gather import (
    SMALL_DTYPES,
    Copies,
    GatheredColumn,
    Shards,
    column_reference,
    gather,
    gather_columns,
)
from khop.kernels.memory import empty_rows
from khop.kernels.triton.gather import PINNED_PROGRAMS
from khop.kernels.triton.launch import launch
from khop.kernels.triton.rows import DeviceRows, Slots, draw_ids, piece_of, row_edges
from khop.kernels.triton.tiles import MOST_COLUMNS, Tiles, row_span, tile
from support.examples import few
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

ROWS = 61
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
)
IDS = torch.cat([torch.tensor([0, ROWS - 1, 7, 7]), torch.arange(25) * 13 % ROWS])
LIVE = 20


def a_table(dtype: torch.dtype, *shape: int) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return (torch.randn(ROWS, *shape, generator=random) * 40).to(dtype)


def at_pitch(table: Tensor) -> Tensor:
    return empty_rows(table.shape[0], tuple(table.shape[1:]), table.dtype, DEVICE).copy_(table)


def copies_of(table: Tensor) -> Copies:
    """Copies of some rows, changed where that shows which one was read."""
    kept = torch.tensor([7, 0, 40, 13])
    slots = torch.full((ROWS,), -1, dtype=torch.int32)
    slots[kept] = torch.arange(4, dtype=torch.int32)
    return Copies(
        slots.to(DEVICE), (table[kept] + 1 if table.dtype != torch.bool else ~table[kept]).to(DEVICE)
    )


@pytest.mark.core(4)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (100,), (5, 60)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_every_dtype_and_width_are_copied(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    table = a_table(dtype, *shape)
    expected = gather(table, IDS)
    with by_triton():
        for placed in (table.to(DEVICE), at_pitch(table)):
            found = gather(placed, IDS.to(DEVICE))
            assert found.dtype == dtype
            assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("width", [1, 20, 100])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("dtype", SMALL_DTYPES, ids=str)
def test_small_numbers_become_float32(dtype: torch.dtype, scaled: bool, width: int) -> None:
    table, scales = a_table(dtype, width), torch.linspace(0.1, 3, width) if scaled else None
    (expected,) = gather_columns([GatheredColumn(table, as_float32=True, scales=scales)], IDS)
    with by_triton():
        on_device = None if scales is None else scales.to(DEVICE)
        for placed in (table.to(DEVICE), at_pitch(table)):
            column = GatheredColumn(placed, as_float32=True, scales=on_device)
            (found,) = gather_columns([column], IDS.to(DEVICE))
            assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_rows_with_a_copy_are_read_from_it_and_rows_behind_the_live_ones_are_0(dtype: torch.dtype) -> None:
    table = a_table(dtype, 20)
    copies, live = copies_of(table), torch.tensor([LIVE], dtype=torch.int32, device=DEVICE)
    ids = IDS.clone()
    ids[LIVE:] = 1 << 40  # not read
    for as_float32 in {False, dtype != torch.float32}:
        column = GatheredColumn(table.to(DEVICE), as_float32=as_float32, copies=copies)
        expected = column_reference(column, ids.to(DEVICE), live)
        assert not expected[LIVE:].any()
        assert not torch.equal(expected[:LIVE].cpu(), table[IDS[:LIVE]].to(expected.dtype))
        with by_triton():
            (found,) = gather_columns([column], ids.to(DEVICE), live=live)
        assert torch.equal(found, expected)
        assert torch.equal(gather_columns([column], ids.to(DEVICE), live=live)[0], expected)


def test_columns_of_one_call_may_differ_in_dtype_and_in_the_number_of_ids() -> None:
    columns = [a_table(torch.float32, 9), a_table(torch.int64)]
    expected = gather_columns([GatheredColumn(columns[0]), GatheredColumn(columns[1], count=4)], IDS)
    with by_triton():
        placed = [GatheredColumn(columns[0].to(DEVICE)), GatheredColumn(columns[1].to(DEVICE), count=4)]
        found = gather_columns(placed, IDS.to(DEVICE))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)


def test_rows_are_written_where_the_caller_wants_them() -> None:
    table, out = a_table(torch.bfloat16, 13), torch.empty(IDS.numel(), 13, dtype=torch.bfloat16)
    with by_triton():
        found = gather(table.to(DEVICE), IDS.to(DEVICE), out=out.to(DEVICE))
    assert torch.equal(found.cpu(), gather(table, IDS))


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_shards_are_read_as_one_table(dtype: torch.dtype, pieces: int) -> None:
    table = a_table(dtype, 20)
    parts = table.split(-(-ROWS // pieces))  # the last one has fewer rows
    shards = Shards.of([at_pitch(part) for part in parts], DEVICE)
    live = torch.tensor([LIVE], dtype=torch.int32, device=DEVICE)
    with by_triton():
        (found,) = gather_columns([GatheredColumn(shards)], IDS.to(DEVICE))
        (some,) = gather_columns([GatheredColumn(shards)], IDS.to(DEVICE), live=live)
        outside = gather_columns([GatheredColumn(shards)], torch.tensor([-1, ROWS, 1 << 40], device=DEVICE))[
            0
        ]
    assert torch.equal(found.cpu(), table[IDS])
    assert torch.equal(some[:LIVE].cpu(), table[IDS[:LIVE]])
    assert not some[LIVE:].any()
    assert not outside.any()
    assert torch.equal(
        gather_columns(
            [GatheredColumn(Shards.of([part.clone() for part in parts], torch.device("cpu")))], IDS
        )[0],
        table[IDS],
    )


@triton.jit
def find_pieces(
    layout: tl.tensor, ids: tl.tensor, rows: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    at = tl.arange(0, BLOCK)
    id = tl.load(ids + at, mask=at < count, other=0)
    _, row = piece_of(layout, id, at < count)
    tl.store(rows + at, row, mask=at < count)


@given(
    rows_each=st.one_of(
        st.integers(1, 100), st.integers(1, 1 << 40), st.integers((1 << 31) - 2, (1 << 31) + 2)
    ),
    pieces=st.integers(1, 64),
    near=st.lists(st.tuples(st.integers(0, 63), st.integers(-2, 2)), min_size=1, max_size=16),
)
def test_the_piece_of_a_row_is_exact(rows_each: int, pieces: int, near: list[tuple[int, int]]) -> None:
    """A reciprocal replaces the division; tables of any size fit."""
    piece = torch.zeros(1, dtype=torch.int8, device=DEVICE).expand(rows_each)
    shards = Shards.of([piece] * pieces, DEVICE)
    wanted = [min(max(0, number % pieces * rows_each + by), pieces * rows_each - 1) for number, by in near]
    ids = torch.tensor(wanted, device=DEVICE)
    rows = torch.full_like(ids, -1)
    launch(find_pieces, 1, rows, shards.layout, ids, rows, ids.numel(), BLOCK=16)
    assert rows.tolist() == [id % rows_each for id in wanted]


def test_shards_that_do_not_fit_are_refused() -> None:
    rows = at_pitch(a_table(torch.float32, 20))
    for pieces in (
        [rows[:20], rows[20:30], rows[30:]],
        [rows[:20], rows[20:].double()],
        [rows[:20, 1:], rows[20:, 2:]],
    ):
        with pytest.raises(ValueError, match="shards: "):
            Shards.of(pieces, DEVICE)


def test_ids_outside_the_table_give_zeros() -> None:
    with by_triton():
        found = gather(a_table(torch.float32, 3).to(DEVICE), torch.tensor([-1, ROWS, 2], device=DEVICE))
    assert (found != 0).any(dim=1).tolist() == [False, False, True]


@pytest.mark.parametrize("is_pinned", [False, True], ids=["device", "pinned"])
def test_few_programs_read_memory_of_the_host(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placed graphs have it as a tensor of the GPU."""
    launches: list[int] = []
    monkeypatch.setattr(
        "khop.kernels.triton.gather.launch", lambda _, programs, *rest, **more: launches.append(programs)
    )
    column = GatheredColumn(a_table(torch.float32, 100).to(DEVICE), is_pinned=is_pinned)
    with by_triton():
        for count in (16, 4000):  # programs of 16 rows
            gather_columns([column], torch.zeros(count, dtype=torch.int64, device=DEVICE))
    assert launches == [1, PINNED_PROGRAMS if is_pinned else 250]


@pytest.mark.skipif(DEVICE.type == "cpu", reason="where there is a GPU")
def test_pinned_rows_are_read_by_the_device() -> None:
    table = a_table(torch.float32, 100)
    found = gather(table.pin_memory(), IDS.to(DEVICE))
    assert found.device.type == "cuda"
    assert torch.equal(found.cpu(), gather(table, IDS))


# Rows in use and their edges, read on the device; other rows have none.


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


@settings(max_examples=few(4))
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
        rows = DeviceRows(torch.zeros(3, dtype=torch.int64), none, none, stream)
        assert (rows.capacity, rows.signed_stream & 0xFFFFFFFF) == (3, stream)
        assert -(1 << 31) <= rows.signed_stream < 1 << 31


def test_slots_have_room_for_every_draw_of_every_row() -> None:
    slots = Slots.empty(5, 3, torch.int32, torch.empty(0, device=DEVICE))
    assert (slots.ids.shape, slots.ids.dtype) == ((15,), torch.int32)
    assert (slots.counts.shape, slots.edges) == ((5,), None)


# Tiles cover every number of a matrix once, for any width.


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


@settings(max_examples=few(4))
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
