"""Pooled and pinned memory for results, memory limits of the process, and padded rows.

The pitch of padded rows is a multiple of 16 bytes, so that GPU threads can use their widest loads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath
from weakref import finalize

import torch
from torch import Tensor

import khop._core as _core


def pooled_on(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialized tensor: in main memory from the pool, else from torch."""
    return pooled(shape, dtype) if device.type == "cpu" else torch.empty(shape, dtype=dtype, device=device)


def pooled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialized tensor in main memory.

    Its block comes from the core's pool and returns to it when the tensor is freed. Reused blocks avoid page
    faults, which cost more than filling the memory.
    """
    block = _core.pooled_bytes(math.prod(shape) * dtype.itemsize)
    # Not block.view(dtype), because a view cannot be changed in place once gradients flow through it.
    return torch.empty(0, dtype=dtype).set_(block.untyped_storage()).resize_(shape)


@dataclass(frozen=True)
class PinningCalls:
    """Addresses of a GPU runtime's pinning functions, and the device."""

    select_device: int
    pin: int
    unpin: int
    last_error: int
    device: int


def pin_pooled(calls: PinningCalls) -> None:
    """Pin blocks of the pool for `pinned_results` from now on, each once.

    Blocks below 128 KiB are not pinned. Pinning stops after the first block that the runtime refuses.
    """
    _core.pin_buffer_pool(*astuple(calls))


@contextmanager
def pinned_results() -> Iterator[None]:
    """Allocate results of this thread in pinned memory, for asynchronous copies to a GPU.

    The caller must keep the results until they are copied, because freed memory is reused.
    """
    before = _core.use_pinned_pool(True)
    try:
        yield
    finally:
        _core.use_pinned_pool(before)


def pinned_pool_bytes() -> tuple[int, int]:
    """Return the pinned bytes of the pool, and the number of blocks that the runtime refused to pin."""
    return _core.pinned_pool_usage()


def keep_free_blocks(limit_bytes: int) -> None:
    """Limit the free blocks of the pool (default 1 GiB); others are returned to the system immediately."""
    _core.set_buffer_pool_limit(limit_bytes)


def own_memory_bytes(process: Path = Path("/proc/self")) -> int:
    """Return the anonymous memory of this process in bytes; 0 if it is unknown."""
    return _status_bytes(process, "RssAnon:")


def resident_bytes(process: Path = Path("/proc/self")) -> int:
    """Return the resident memory of this process in bytes, including mapped files; 0 if it is unknown."""
    return _status_bytes(process, "VmRSS:")


def _status_bytes(process: Path, field: str) -> int:
    with suppress(OSError, StopIteration):
        lines = (process / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024
    return 0


def expect_random_access(tensor: Tensor) -> None:
    """Prepare a large contiguous tensor in main memory for random reads: 1.2 to 1.7 times as fast.

    Requests huge pages. A mapped file smaller than a quarter of the memory that this process may use is also
    read in the background. Call it before the first access. Contents do not change.
    """
    data = _as_bytes(tensor)
    _core.expect_random_access(data)
    if data.numel() < memory_limit_bytes() // 4:
        _core.read_in_background(data)


def expect_sparse_reads(tensor: Tensor, owner: object) -> None:
    """Prepare a mapped file larger than memory for random row reads, until `owner` is freed.

    Each fault then reads one page, instead of the megabytes that the kernel reads ahead by default. `gather`
    prefetches the pages of its rows on several threads. `owner` owns the mapping.
    """
    data = _as_bytes(tensor)
    _core.expect_sparse_reads(data)
    finalize(owner, _core.forget_sparse_reads, data.data_ptr())


def memory_limit_bytes(process: Path = Path("/proc/self"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process may use: the machine's, or its control groups' lowest limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_group_limits(process / "cgroup", groups)])


def free_memory_bytes(
    process: Path = Path("/proc/self"),
    groups: Path = Path("/sys/fs/cgroup"),
    machine: Path = Path("/proc/meminfo"),
) -> int:
    """Return the memory still available to this process, on the machine and in its control groups.

    Pages of files count as free, because the system can evict them.
    """
    free = [memory_limit_bytes(process, groups)]
    with suppress(OSError):
        fields = dict(line.split(":", 1) for line in machine.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            free.append(int(fields["MemAvailable"].split()[0]) * 1024)
    for folder, limit_name, usage_name, pages in _groups(process / "cgroup", groups):
        with suppress(OSError, ValueError, KeyError):
            limit, usage = (int((folder / name).read_text()) for name in (limit_name, usage_name))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = int(stat[pages]) + int(stat.get(pages.replace("inactive", "active"), 0))
            free.append(limit - usage + files)
    return max(0, min(free))


def _group_limits(memberships: Path, groups: Path) -> Iterator[int]:
    """Yield the limits of Linux control groups, version 1 and 2."""
    for folder, limit_name, _, _ in _groups(memberships, groups):
        with suppress(OSError, ValueError):  # missing, or "max"
            yield int((folder / limit_name).read_text())


def _groups(memberships: Path, groups: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the folders of the process's groups: limit, usage, and the entry of file pages in memory.stat."""
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = groups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path may be the host's. Then the root is the container's group.
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield (root / folder, *names)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


LOAD_BYTES = 16  # the widest load of a thread


def padded_pitch(width: int, dtype: torch.dtype) -> int:
    """Return the pitch of rows of `width` numbers, in numbers.

    A row of at least 16 bytes is padded to a multiple of 16. A shorter row is not padded: labels stay dense.
    """
    per_load = LOAD_BYTES // dtype.itemsize
    return width if width < per_load else -(-width // per_load) * per_load


def empty_rows(rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialized tensor (rows, *shape) at padded pitch; the last row is padded too."""
    pitch = padded_pitch(math.prod(shape), dtype)
    memory = torch.empty(rows * pitch, dtype=dtype, device=device).untyped_storage()
    strides = pitch, *(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    # Not a view of the memory: a view cannot be changed in place once gradients flow through it.
    return torch.empty(0, dtype=dtype, device=device).set_(memory, 0, (rows, *shape), strides)


def flat_rows(table: Tensor) -> Tensor:
    """Return a table (rows, ...) of contiguous rows, at any pitch, as (rows, width)."""
    width = math.prod(table.shape[1:])
    pitch = table.stride(0) if table.shape[0] > 1 else width
    return table.as_strided((table.shape[0], width), (pitch, 1))


def accessible_width(rows: Tensor) -> int:
    """Return the number of elements that a kernel may access from the start of each row of (rows, width).

    This is the padded pitch if rows have this pitch and the storage includes the padding of the last row,
    else the width.
    """
    count, width = rows.shape
    padded = padded_pitch(width, rows.dtype)
    end = rows.storage_offset() + max(count - 1, 0) * rows.stride(0) + padded
    has_room = rows.stride(0) == padded and end * rows.element_size() <= rows.untyped_storage().nbytes()
    return padded if has_room else width
