"""Rows gathered by Triton, cached or not, have the bits of the CPU core."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.kernels.gather import SMALL_DTYPES, Column, Copies, column_reference, gather, gather_columns
from khop.kernels.memory import empty_rows
from khop.kernels.triton.gather import PINNED_PROGRAMS
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
    (expected,) = gather_columns([Column(table, as_float32=True, scales=scales)], IDS)
    with by_triton():
        on_device = None if scales is None else scales.to(DEVICE)
        for placed in (table.to(DEVICE), at_pitch(table)):
            column = Column(placed, as_float32=True, scales=on_device)
            (found,) = gather_columns([column], IDS.to(DEVICE))
            assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_rows_with_a_copy_are_read_from_it_and_rows_behind_the_live_ones_are_0(dtype: torch.dtype) -> None:
    table = a_table(dtype, 20)
    copies, live = copies_of(table), torch.tensor([LIVE], dtype=torch.int32, device=DEVICE)
    ids = IDS.clone()
    ids[LIVE:] = 1 << 40  # not read
    for as_float32 in {False, dtype != torch.float32}:
        column = Column(table.to(DEVICE), as_float32=as_float32, copies=copies)
        expected = column_reference(column, ids.to(DEVICE), live)
        assert not expected[LIVE:].any()
        assert not torch.equal(expected[:LIVE].cpu(), table[IDS[:LIVE]].to(expected.dtype))
        with by_triton():
            (found,) = gather_columns([column], ids.to(DEVICE), live=live)
        assert torch.equal(found, expected)
        assert torch.equal(gather_columns([column], ids.to(DEVICE), live=live)[0], expected)


def test_columns_of_one_call_may_differ_in_dtype_and_in_the_number_of_ids() -> None:
    columns = [a_table(torch.float32, 9), a_table(torch.int64)]
    expected = gather_columns([Column(columns[0]), Column(columns[1], count=4)], IDS)
    with by_triton():
        placed = [Column(columns[0].to(DEVICE)), Column(columns[1].to(DEVICE), count=4)]
        found = gather_columns(placed, IDS.to(DEVICE))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)


def test_rows_are_written_where_the_caller_wants_them() -> None:
    table, out = a_table(torch.bfloat16, 13), torch.empty(IDS.numel(), 13, dtype=torch.bfloat16)
    with by_triton():
        found = gather(table.to(DEVICE), IDS.to(DEVICE), out=out.to(DEVICE))
    assert torch.equal(found.cpu(), gather(table, IDS))


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
    column = Column(a_table(torch.float32, 100).to(DEVICE), is_pinned=is_pinned)
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
