""""""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import khop._core as _core
from khop.kernels.memory import (
    accessible_width,
    empty_rows,
    expect_random_access,
    flat_rows,
    free_memory_bytes,
    memory_limit_bytes,
    padded_pitch,
    pinned_results,
    pooled,
)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (0, 7), (4, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_is_an_ordinary_contiguous_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = pooled(shape, dtype)
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.fill_(1).sum().real == tensor.numel()


def test_gradients_flow_through_changes_in_place() -> None:
    with torch.no_grad():
        tensor = pooled((3,), torch.float32).fill_(2.0)
    weight = torch.ones(3, requires_grad=True)
    tensor.mul_(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_block_comes_back_when_its_last_tensor_dies() -> None:
    shape = (123, 4567)
    tensor = pooled(shape, torch.float32)
    address, view = tensor.data_ptr(), tensor[1:]
    del tensor
    lent = _core.buffer_pool_usage()[1]
    assert pooled(shape, torch.float32).data_ptr() != address
    del view
    assert _core.buffer_pool_usage()[1] < lent
    assert pooled(shape, torch.float32).data_ptr() == address


def test_pinned_results_have_memory_of_their_own_in_this_thread_alone() -> None:
    """Ordinary results may be copied to a GPU by anyone, without care for their memory."""
    shape = (321, 4567)
    with pinned_results():
        inside = pooled(shape, torch.float32)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(pooled, shape, torch.float32).result()
    addresses = inside.data_ptr(), other.data_ptr()
    del inside, other
    assert pooled(shape, torch.float32).data_ptr() == addresses[1]
    with pinned_results():
        assert pooled(shape, torch.float32).data_ptr() == addresses[0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("count", [0, 3, 3_000_000])
def test_advice_leaves_contents_and_addresses_alone(count: int, dtype: torch.dtype) -> None:
    tensor = (torch.arange(count) % 2).to(dtype)
    address, expected = tensor.data_ptr(), tensor.clone()
    expect_random_access(tensor)
    assert tensor.data_ptr() == address
    assert torch.equal(tensor, expected)


def test_a_mapped_file_may_be_advised(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    expected = torch.arange(700_000)
    path.write_bytes(expected.numpy().tobytes())
    mapped = torch.from_file(str(path), shared=False, size=700_000, dtype=torch.int64)
    expect_random_access(mapped)
    assert torch.equal(mapped, expected)


PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def group_files(folder: Path, memberships: str, limits: dict[str, str]) -> int:
    """The limit read from a process's memberships and the limit files of control groups."""
    (folder / "cgroup").write_text(memberships)
    for name, limit in limits.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(limit + "\n")
    return memory_limit_bytes(folder, folder)


@pytest.mark.parametrize(
    ("memberships", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "7000"}, 7000),
        ("0::/a/b\n", {"a/b/memory.max": "500", "a/memory.max": "7000"}, 500),
        ("0::/on/the/host\n", {"memory.max": "900"}, 900),
        ("4:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "123"}, 123),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, PHYSICAL),
        ("3:cpu:/a\n", {"a/memory.max": "5"}, PHYSICAL),
        ("0::/\n", {}, PHYSICAL),
    ],
)
def test_the_lowest_limit_of_all_groups_holds(
    tmp_path: Path, memberships: str, limits: dict[str, str], expected: int
) -> None:
    assert group_files(tmp_path, memberships, limits) == expected


def test_without_control_groups_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path, tmp_path) == PHYSICAL
    assert memory_limit_bytes() <= PHYSICAL


@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        ("0::/\n", {}, 4096 * 1024),
        ("", {}, 4096 * 1024),
        (
            "0::/a\n",
            {
                "a/memory.max": "900000",
                "a/memory.current": "700000",
                "a/memory.stat": "anon 1\ninactive_file 30000\nactive_file 20000",
            },
            250_000,
        ),
        (
            "0::/a\n",
            {"a/memory.max": "max", "a/memory.current": "7", "a/memory.stat": "inactive_file 5"},
            4096 * 1024,
        ),
        (
            "0::/a\n",
            {"a/memory.max": "500", "a/memory.current": "700", "a/memory.stat": "inactive_file 9"},
            0,
        ),
        (
            "4:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "1000",
                "memory/a/memory.usage_in_bytes": "400",
                "memory/a/memory.stat": "total_inactive_file 100",
            },
            700,
        ),
    ],
)
def test_free_memory_is_what_machine_and_groups_leave(
    tmp_path: Path, memberships: str, files: dict[str, str], expected: int
) -> None:
    group_files(tmp_path, memberships, files)
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    4096 kB\nHugetlb: 0 kB\n")
    assert free_memory_bytes(tmp_path, tmp_path, tmp_path / "meminfo") == expected


def test_free_memory_of_this_machine_is_below_its_memory() -> None:
    assert 0 < free_memory_bytes() <= memory_limit_bytes()


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("width", "dtype", "pitch"),
    [
        (100, torch.float32, 100),
        (100, torch.bfloat16, 104),
        (100, torch.int8, 112),
        (3, torch.float64, 4),
        (1, torch.int64, 1),
        (3, torch.float32, 3),
        (5, torch.float32, 8),
        (3, torch.complex128, 3),
        (0, torch.float32, 0),
    ],
)
def test_rows_of_16_bytes_and_more_are_padded_to_a_multiple_of_16(
    width: int, dtype: torch.dtype, pitch: int
) -> None:
    assert padded_pitch(width, dtype) == pitch


def test_rows_at_padded_pitch_have_the_shape_that_was_asked_for() -> None:
    rows = empty_rows(4, (3, 3), torch.float32, CPU)
    assert rows.shape == (4, 3, 3)
    assert rows.stride() == (12, 3, 1)
    assert flat_rows(rows).shape == (4, 9)
    assert flat_rows(rows).stride() == (12, 1)
    assert flat_rows(empty_rows(4, (), torch.int64, CPU)).shape == (4, 1)


def test_padding_is_accessible_where_there_is_some() -> None:
    padded = empty_rows(4, (9,), torch.float32, CPU)
    assert accessible_width(padded) == 12
    assert accessible_width(padded.contiguous()) == 9
    wide = torch.zeros(4, 12)
    assert accessible_width(wide[:, :9]) == 12
    assert accessible_width(wide[:, 3:]) == 9  # the last row ends with the storage
