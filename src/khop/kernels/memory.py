"""Memory for results, and advice on memory that is read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from weakref import finalize

import torch
from torch import Tensor

import khop._core as _core


def pooled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new tensor in main memory whose contents are whatever they are.

    Its block comes from the core's pool and goes back when the tensor dies. Blocks of earlier batches cost
    nothing, where new memory costs more page faults than filling it does.
    """
    block = _core.pooled_bytes(math.prod(shape) * dtype.itemsize)
    # Not block.view(dtype): a view would refuse to be changed in place once gradients flow through it.
    return torch.empty(0, dtype=dtype).set_(block.untyped_storage()).resize_(shape)


def expect_random_access(tensor: Tensor) -> None:
    """Prepare a large contiguous tensor in main memory for random reads: 1.2 to 1.7 times as fast.

    Asks for huge pages and, for a mapped file of less than a quarter of the memory that this process may
    use, starts to read it in the background. Call it before the first access. Contents do not change.
    """
    data = _as_bytes(tensor)
    _core.expect_random_access(data)
    if data.numel() < memory_limit_bytes() // 4:
        _core.read_in_background(data)


def expect_sparse_reads(tensor: Tensor, owner: object) -> None:
    """Prepare a mapped file that is larger than memory for reads of single rows, until `owner` dies.

    Each fault then reads one page, instead of the megabytes that the kernel reads ahead by default, and
    `gather` requests the pages of its rows ahead, on several threads. `owner` holds the mapping.
    """
    data = _as_bytes(tensor)
    _core.expect_sparse_reads(data)
    finalize(owner, _core.forget_sparse_reads, data.data_ptr())


def memory_limit_bytes(process: Path = Path("/proc/self"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may use: the machine's, or the lowest limit of its control groups."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_group_limits(process / "cgroup", groups)])


def _group_limits(memberships: Path, groups: Path) -> Iterator[int]:
    """The limits that stand in the files of version 1 and 2 of Linux' control groups."""
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the path may be that of the host: the root is then the container's own group.
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # not there, or "max"
                yield int((root / folder / name).read_text())


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)
