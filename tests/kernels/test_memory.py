""""""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import khop._core as _core
from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.edge_times import HopRows
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
from khop.kernels.node_index import NodeIndex
from khop.kernels.philox import permutation_slice, philox
from khop.sampling.rules.uniform import Uniform
from support.draws import sample_uniform
from support.gate import WAIT_S
from support.ticking import ticking


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


# Native calls run without the GIL, and their results own their memory.


ROWS, DEGREE = 2_000_000, 6


@pytest.fixture(scope="module")
def csc() -> Csc:
    indices = torch.arange(ROWS * DEGREE, dtype=torch.int32) * 7919 % ROWS
    return Csc(torch.arange(ROWS + 1) * DEGREE, indices)


def long_calls(csc: Csc) -> dict[str, Callable[[], object]]:
    nodes = torch.arange(ROWS)
    index = NodeIndex(ROWS)
    counters = torch.zeros(1_000_000, 4, dtype=torch.int64)
    return {
        "sample_uniform": lambda: sample_uniform(csc, HopRows(nodes, DrawKey(0), 1), 5, Uniform()),
        "insert": lambda: index.insert(csc.indices),
        "permutation_slice": lambda: permutation_slice(0, 1 << 40, 0, 200_000),
        "philox": lambda: philox(0, counters),
    }


@pytest.mark.core(2)
@pytest.mark.parametrize("name", ["sample_uniform", "insert", "permutation_slice", "philox"])
def test_python_runs_beside_a_long_native_call(csc: Csc, name: str) -> None:
    """With the GIL held it would in none; without, a busy machine may still give the core to one of them."""
    call, end = long_calls(csc)[name], time.monotonic() + WAIT_S
    with ticking() as ticker:
        while ticker.ticks_beside(call) <= 5_000:
            assert time.monotonic() < end


def test_kept_results_stay_as_they_are(csc: Csc) -> None:
    """Whoever keeps every batch gets other memory for each, at once."""

    def batch(step: int) -> list[torch.Tensor]:
        drawn = sample_uniform(
            csc, HopRows(torch.arange(500) * 31, DrawKey(step), 1), 5, Uniform(), edge_ids=True
        )
        index = NodeIndex(ROWS)
        assert drawn.edges is not None
        return [drawn.offsets, drawn.nodes, drawn.edges, index.insert(drawn.nodes), index.nodes()]

    kept = [batch(step) for step in range(20)]
    places = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for tensors in kept for t in tensors)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    for step, tensors in enumerate(kept):
        assert all(torch.equal(a, b) for a, b in zip(tensors, batch(step), strict=True))


def test_a_warm_loop_takes_no_new_memory(csc: Csc) -> None:
    index = NodeIndex(ROWS)

    def batch(step: int) -> None:
        index.clear()
        index.insert(torch.arange(300) + step)
        for hop in range(3):
            drawn = sample_uniform(csc, HopRows(index.nodes(), DrawKey(step), hop), 5, Uniform())
            index.insert(drawn.nodes)

    for step in range(5):
        batch(step)
    _, lent, reused, fresh = _core.buffer_pool_usage()
    for step in range(5, 50):
        batch(step)
    assert _core.buffer_pool_usage()[3] == fresh
    assert _core.buffer_pool_usage()[2] > reused
    assert _core.buffer_pool_usage()[1] == lent


def test_results_outlive_what_made_them(csc: Csc) -> None:
    nodes = NodeIndex(10)
    local = nodes.insert(torch.tensor([4, 2, 4]))
    del nodes
    assert local.tolist() == [0, 1, 0]


def test_results_can_be_written_and_resized_like_any_tensor(csc: Csc) -> None:
    drawn = sample_uniform(csc, HopRows(torch.tensor([0]), DrawKey(0), 1), 3, Uniform())
    drawn.nodes.fill_(7)
    assert torch.cat([drawn.nodes, drawn.nodes]).tolist() == [7] * 6


def test_threads_that_sample_at_once_get_what_one_gets(csc: Csc) -> None:
    def sample(step: int) -> torch.Tensor:
        frontier = torch.arange(5000) * 13
        return sample_uniform(csc, HopRows(frontier, DrawKey(step), 1), 4, Uniform(), threads=2).nodes

    expected = [sample(step) for step in range(12)]
    found: dict[int, torch.Tensor] = {}

    def work(first: int) -> None:
        for step in range(first, 12, 4):
            found[step] = sample(step)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[step], expected[step]) for step in range(12))


def test_an_unknown_dispatch_level_is_refused() -> None:
    before = _core.dispatch_level()
    with pytest.raises(ValueError, match="dispatch level mmx"):
        _core.set_dispatch_level("mmx")
    assert _core.dispatch_level() == before
    assert before in _core.dispatch_levels()
