"""Rows read from a file are those of its bytes, and a file that cannot be read is named with the row."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels import gather as file_rows
from khop.kernels.gather import (
    IGNORES_PREFETCH,
    PLACE,
    SMALL_DTYPES,
    GatheredColumn,
    RowFile,
    Turns,
    column_reference,
    gather,
    gather_columns,
    read_file_rows,
)

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)


def some_table(rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (
        (torch.arange(rows * int(np.prod(shape)), dtype=torch.float32) % 200).reshape(rows, *shape).to(dtype)
    )


def same_bits(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(
        left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8)
    )


def as_float32(
    table: Tensor,
    ids: Tensor,
    scales: Tensor | None = None,
    out: Tensor | None = None,
    threads: int = 1,
) -> Tensor:
    column = GatheredColumn(table, as_float32=True, scales=scales, out=out)
    return gather_columns([column], ids, threads=threads)[0]


@given(
    rows=st.integers(1, 40),
    shape=st.sampled_from([(), (1,), (3,), (100,), (7, 5), (0,), (1300,)]),
    dtype=st.sampled_from(DTYPES),
    count=st.sampled_from([0, 1, 5, 100]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_equals_indexing(
    rows: int, shape: tuple[int, ...], dtype: torch.dtype, count: int, threads: int, seed: int
) -> None:
    table = some_table(rows, shape, dtype)
    ids = torch.randint(rows, (count,), generator=torch.Generator().manual_seed(seed))
    gathered = gather(table, ids, threads=threads)
    assert gathered.shape == (count, *shape)
    assert same_bits(gathered, column_reference(GatheredColumn(table), ids))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_rows_into_a_given_buffer(threads: int) -> None:
    table = some_table(5000, (100,), torch.float32)
    ids = torch.randint(5000, (20_000,), generator=torch.Generator().manual_seed(0))
    out = torch.full((20_000, 100), -1.0)
    assert gather(table, ids, out=out, threads=threads) is out
    assert torch.equal(out, table[ids])


def test_rows_of_a_mapped_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(4, 3))
    table = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    assert gather(table, torch.tensor([3, 0])).tolist() == [[9.0, 10.0, 11.0], [0.0, 1.0, 2.0]]


def test_an_empty_table_gives_no_rows() -> None:
    assert gather(torch.empty(0, 4), torch.empty(0, dtype=torch.int64)).shape == (0, 4)


def test_ids_need_not_be_contiguous() -> None:
    assert gather(torch.arange(5), torch.tensor([[4, 0], [1, 0]])[:, 0]).tolist() == [4, 1]


def test_a_table_that_requires_grad_is_only_read() -> None:
    assert not gather(torch.zeros(3, 2, requires_grad=True), torch.tensor([1])).requires_grad


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_the_first_id_out_of_range_is_named(bad: int, threads: int) -> None:
    ids = torch.zeros(1_000_000, dtype=torch.int64)
    ids[[700_001, 999_999]] = bad
    with pytest.raises(ValueError, match=rf"row id {bad} at position 700001: must be in \[0, 5\)"):
        gather(torch.zeros(5, 1), ids, threads=threads)


@pytest.mark.parametrize(
    ("table", "ids", "out", "message"),
    [
        (torch.zeros(4, 6).t(), torch.tensor([0]), None, r"strides \(1, 6\)"),
        (torch.tensor(1.0), torch.tensor([0]), None, "rows must be contiguous"),
        (torch.zeros(4, 6), torch.tensor([0], dtype=torch.int32), None, "must be int64"),
        (torch.zeros(4, 6), torch.tensor([[0]]), None, r"row ids are torch.int64 \(1, 1\)"),
        (torch.zeros(4, 6), torch.tensor([0]), torch.zeros(2, 6), "out has"),
        (torch.zeros(4, 6), torch.tensor([0]), torch.zeros(1, 6, dtype=torch.float64), "out has"),
        (torch.zeros(4, 6), torch.tensor([0, 1]), torch.zeros(6, 2).t(), "out has"),
        (torch.zeros(4, 6), torch.empty(0, dtype=torch.int64, device="meta"), None, "ids are on meta"),
    ],
)
def test_what_cannot_be_gathered_is_said(
    table: Tensor, ids: Tensor, out: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gather(table, ids, out=out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 15, 16, 64])
def test_every_16_bit_float_becomes_its_float32(dtype: torch.dtype, width: int) -> None:
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    table = numbers[: numbers.numel() // width * width].view(-1, width)
    widened = as_float32(table, torch.arange(table.shape[0]))
    assert torch.equal(widened.nan_to_num(nan=0.5), table.float().nan_to_num(nan=0.5))
    assert torch.equal(widened.signbit(), table.float().signbit())


@given(
    shape=st.sampled_from([(), (1,), (3,), (7, 5), (0,), (16,), (100,), (129,)]),
    dtype=st.sampled_from(SMALL_DTYPES),
    scaled=st.booleans(),
    count=st.sampled_from([0, 1, 100]),
    threads=st.integers(1, 4),
)
def test_small_numbers_become_float32(
    shape: tuple[int, ...], dtype: torch.dtype, scaled: bool, count: int, threads: int
) -> None:
    table = some_table(40, shape, torch.float32).to(dtype)
    random = torch.Generator().manual_seed(count)
    ids = torch.randint(40, (count,), generator=random)
    scales = torch.rand(shape, generator=random) if scaled else None
    widened = as_float32(table, ids, scales=scales, threads=threads)
    assert widened.shape == (count, *shape)
    assert torch.equal(widened, column_reference(GatheredColumn(table, as_float32=True, scales=scales), ids))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_small_rows_into_a_given_buffer(threads: int) -> None:
    table = some_table(5000, (100,), torch.uint8)
    ids = torch.randint(5000, (20_000,), generator=torch.Generator().manual_seed(0))
    out = torch.full((20_000, 100), -1.0)
    assert as_float32(table, ids, out=out, threads=threads) is out
    assert torch.equal(out, column_reference(GatheredColumn(table, as_float32=True), ids))


@pytest.mark.parametrize(
    ("table", "scales", "out", "message"),
    [
        (torch.zeros(4, 6), None, None, "table is torch.float32"),
        (torch.zeros(4, 6).half(), torch.ones(4), None, "one per column"),
        (torch.zeros(4, 6).half(), torch.ones(6).half(), None, "one per column"),
        (torch.zeros(4, 6).half(), None, torch.zeros(1, 6).half(), "out has"),
    ],
)
def test_what_cannot_become_float32_is_said(
    table: Tensor, scales: Tensor | None, out: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        as_float32(table, torch.tensor([0]), scales=scales, out=out)


@given(
    count=st.sampled_from([0, 1, 100, 9000]),
    threads=st.integers(1, 3),
    limit=st.sampled_from([None, 0, 7, 5000]),
)
def test_several_columns_at_once_are_each_by_itself(count: int, threads: int, limit: int | None) -> None:
    ids = torch.randint(40, (count,), generator=torch.Generator().manual_seed(count))
    scales = torch.rand(3, generator=torch.Generator().manual_seed(1))
    tables = [some_table(40, (3,), dtype) for dtype in (torch.float64, *SMALL_DTYPES)]
    columns = [
        GatheredColumn(tables[0], count=limit),
        *(GatheredColumn(table, as_float32=True, scales=scales) for table in tables[1:]),
        GatheredColumn(tables[1]),
    ]
    together = gather_columns(columns, ids, threads=threads)
    assert same_bits(together[0], gather(tables[0], ids[:limit]))
    for table, rows in zip(tables[1:], together[1:-1], strict=True):
        assert same_bits(rows, as_float32(table, ids, scales=scales))
    assert same_bits(together[-1], gather(tables[1], ids))


@given(
    cuts=st.lists(st.integers(0, 40), max_size=5).map(sorted),
    count=st.sampled_from([0, 1, 100, 9000]),
    limit=st.sampled_from([None, 0, 5000]),
    threads=st.integers(1, 3),
)
def test_pieces_of_a_table_are_read_as_the_whole(
    cuts: list[int], count: int, limit: int | None, threads: int
) -> None:
    ids = torch.randint(40, (count,), generator=torch.Generator().manual_seed(count))
    wide, small = some_table(40, (100,), torch.float64), some_table(40, (), torch.float16)
    out = torch.empty(count, 100, dtype=torch.float64)
    columns = [
        GatheredColumn(wide.tensor_split(cuts), out=out),
        GatheredColumn(small.tensor_split(cuts), as_float32=True, count=limit),
        GatheredColumn(small),
    ]
    rows = gather_columns(columns, ids, threads=threads)
    assert rows[0] is out
    assert same_bits(out, wide[ids])
    assert same_bits(rows[1], small[ids[:limit]].float())
    assert same_bits(rows[2], small[ids])


def test_pieces_with_rows_that_differ_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"pieces of a table are torch.float32 \(2, 3\) and torch.float32 \(2,"
    ):
        gather_columns([GatheredColumn((torch.zeros(2, 3), torch.zeros(2, 4)))], torch.tensor([0]))
    with pytest.raises(ValueError, match=r"row id 4 at position 0: must be in \[0, 4\)"):
        gather_columns([GatheredColumn((torch.zeros(2), torch.zeros(2)))], torch.tensor([4]))


def test_a_column_of_one_row_of_a_wider_table() -> None:
    one = torch.arange(14.0).view(2, 7)[1:, 3]
    assert one.stride() == (7,)
    assert gather(one, torch.tensor([0, 0])).tolist() == [10.0, 10.0]


def test_of_several_columns_the_one_without_the_row_is_named() -> None:
    columns = [GatheredColumn(torch.ones(5), "first"), GatheredColumn(torch.ones(3), "second")]
    with pytest.raises(ValueError, match=r"second id 4 at position 1: must be in \[0, 3\)"):
        gather_columns(columns, torch.tensor([2, 4]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="where there is a GPU")
def test_several_columns_on_a_gpu_are_the_same() -> None:
    table = some_table(40, (3,), torch.float16).cuda()
    columns = [GatheredColumn(table.split(7)), GatheredColumn(table, as_float32=True)]
    rows = gather_columns(columns, torch.tensor([39, 0]).cuda())
    assert rows[1].tolist() == rows[0].float().tolist() == table[[39, 0]].float().tolist()


FILE_ROWS_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int64,
    torch.bfloat16,
    torch.float64,
)
HEADER = 64
LOCAL, NFS = 0xEF53, 0x6969


def stored(path: Path, table: torch.Tensor, file_system: int = LOCAL) -> RowFile:
    path.write_bytes(bytes(HEADER) + table.view(torch.uint8).numpy().tobytes())
    return RowFile.open(
        path, HEADER, table.shape[0], tuple(table.shape[1:]), table.dtype, lambda descriptor: file_system
    )


@pytest.mark.parametrize("file_system", [LOCAL, NFS])
@given(data=st.data())
def test_rows_are_those_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory, file_system: int, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(FILE_ROWS_DTYPES))
    rows, width = data.draw(st.integers(1, 900)), data.draw(st.integers(1, 70))
    table = torch.randint(0, 2, (rows, width)).to(dtype)
    file = stored(tmp_path_factory.mktemp("table") / "x", table, file_system)
    ids = torch.tensor(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), dtype=torch.int64)
    found = read_file_rows(file, ids, threads=data.draw(st.integers(1, 3)))
    assert torch.equal(found, table[ids])


def test_numbers_without_a_shape_and_no_rows(tmp_path: Path) -> None:
    file = stored(tmp_path / "x", torch.arange(50))
    assert read_file_rows(file, torch.tensor([3, 4, 49])).tolist() == [3, 4, 49]
    assert read_file_rows(file, torch.tensor([], dtype=torch.int64)).shape == (0,)


def test_file_systems_that_ignore_announcements_are_read_by_threads(tmp_path: Path) -> None:
    table = torch.arange(4000).view(-1, 4)
    assert stored(tmp_path / "local", table).can_prefetch
    for number in IGNORES_PREFETCH:
        assert not stored(tmp_path / "other", table, number).can_prefetch
    assert RowFile.open(tmp_path / "local", HEADER, 1000, (4,), torch.int64).shape == (4,)


@pytest.mark.parametrize("file_system", [LOCAL, NFS])
def test_a_file_that_was_cut_short_is_named_with_its_first_missing_row(
    tmp_path: Path, file_system: int
) -> None:
    file = stored(tmp_path / "x", torch.arange(8000).view(-1, 4), file_system)
    os.truncate(tmp_path / "x", HEADER + 1000 * 32 + 5)
    ids = torch.arange(0, 2000, 3)
    assert read_file_rows(file, ids[:334])[-1].tolist() == [999 * 4 + at for at in range(4)]
    with pytest.raises(ValueError, match=r"x: row 1,002 of 2,000 cannot be read: the file ends"):
        read_file_rows(file, ids)


def test_an_error_of_the_disk_is_named(tmp_path: Path) -> None:
    """The memory of a process at address 0 stands for a broken disk: to read it is an I/O error."""
    file = RowFile.open(Path("/proc/self/mem"), 0, 9, (8,), torch.float32)
    with pytest.raises(ValueError, match=r"mem: row 2 of 9 cannot be read: Input/output error; the file was"):
        read_file_rows(file, torch.tensor([2, 7]))


def test_a_file_that_is_removed_keeps_its_rows_until_it_is_closed(tmp_path: Path) -> None:
    table = torch.arange(60).view(-1, 2)
    file = stored(tmp_path / "x", table)
    (tmp_path / "x").unlink()
    assert torch.equal(read_file_rows(file, torch.tensor([4, 20])), table[[4, 20]])
    descriptor = file.descriptor
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(FileNotFoundError):
        RowFile.open(tmp_path / "x", 0, 1, (1,), torch.int64)


def test_calls_for_one_file_take_turns(tmp_path: Path) -> None:
    table = torch.arange(60).view(-1, 2)
    file, other = stored(tmp_path / "x", table), stored(tmp_path / "y", table)
    with ThreadPoolExecutor(1) as pool:
        with file.turns.taken():
            waiting = pool.submit(read_file_rows, file, torch.tensor([4, 20]))
            assert torch.equal(read_file_rows(other, torch.tensor([7])), table[[7]])
            assert not waiting.done()
        assert torch.equal(waiting.result(timeout=60), table[[4, 20]])


def test_a_long_call_has_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, begin = list[int](), Turns._begin
    monkeypatch.setattr(Turns, "_begin", lambda turns, place: (taken.append(place), begin(turns, place))[1])
    monkeypatch.setattr(file_rows, "TURN_ROWS", 7)
    table = torch.arange(60).view(-1, 2)
    file = stored(tmp_path / "x", table)
    ids = torch.arange(0, 30, 2)
    assert torch.equal(read_file_rows(file, ids), table[ids])
    assert len(taken) == 3
    os.truncate(tmp_path / "x", HEADER + 20 * 16)
    with pytest.raises(ValueError, match="row 20 of 30 cannot be read"):
        read_file_rows(file, ids)


def placed(place: int, turns: Turns, order: list[int]) -> None:
    PLACE.set(place)
    with turns.taken():
        order.append(place)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_the_lowest_place_of_those_that_wait_goes_first(places: list[int]) -> None:
    turns, order = Turns(), list[int]()
    with ThreadPoolExecutor(len(places)) as pool:
        with turns.taken():
            waiting = [pool.submit(copy_context().run, placed, place, turns, order) for place in places]
            while len(turns._waiting) < len(places):
                time.sleep(0.001)
            assert not order
        for one in waiting:
            one.result(timeout=60)
    assert order == sorted(places)


def test_only_one_has_a_turn_and_an_error_ends_it() -> None:
    turns, inside, most = Turns(), [0], [0]

    def work() -> None:
        for _ in range(20):
            try:
                with turns.taken():
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(1e-5)  # another thread would come in here
                    inside[0] -= 1
                    raise KeyError
            except KeyError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]
    assert not turns._is_taken
    assert not turns._waiting
