from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.gather import (
    SMALL_DTYPES,
    Column,
    column_reference,
    gather,
    gather_columns,
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
    column = Column(table, as_float32=True, scales=scales, out=out)
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
    assert same_bits(gathered, column_reference(Column(table), ids))


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
    assert torch.equal(widened, column_reference(Column(table, as_float32=True, scales=scales), ids))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_small_rows_into_a_given_buffer(threads: int) -> None:
    table = some_table(5000, (100,), torch.uint8)
    ids = torch.randint(5000, (20_000,), generator=torch.Generator().manual_seed(0))
    out = torch.full((20_000, 100), -1.0)
    assert as_float32(table, ids, out=out, threads=threads) is out
    assert torch.equal(out, column_reference(Column(table, as_float32=True), ids))


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
        Column(tables[0], count=limit),
        *(Column(table, as_float32=True, scales=scales) for table in tables[1:]),
        Column(tables[1]),
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
        Column(wide.tensor_split(cuts), out=out),
        Column(small.tensor_split(cuts), as_float32=True, count=limit),
        Column(small),
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
        gather_columns([Column((torch.zeros(2, 3), torch.zeros(2, 4)))], torch.tensor([0]))
    with pytest.raises(ValueError, match=r"row id 4 at position 0: must be in \[0, 4\)"):
        gather_columns([Column((torch.zeros(2), torch.zeros(2)))], torch.tensor([4]))


def test_a_column_of_one_row_of_a_wider_table() -> None:
    one = torch.arange(14.0).view(2, 7)[1:, 3]
    assert one.stride() == (7,)
    assert gather(one, torch.tensor([0, 0])).tolist() == [10.0, 10.0]


def test_of_several_columns_the_one_without_the_row_is_named() -> None:
    columns = [Column(torch.ones(5), "first"), Column(torch.ones(3), "second")]
    with pytest.raises(ValueError, match=r"second id 4 at position 1: must be in \[0, 3\)"):
        gather_columns(columns, torch.tensor([2, 4]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="where there is a GPU")
def test_several_columns_on_a_gpu_are_the_same() -> None:
    table = some_table(40, (3,), torch.float16).cuda()
    columns = [Column(table.split(7)), Column(table, as_float32=True)]
    rows = gather_columns(columns, torch.tensor([39, 0]).cuda())
    assert rows[1].tolist() == rows[0].float().tolist() == table[[39, 0]].float().tolist()
