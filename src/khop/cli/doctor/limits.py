"""Findings on the limits of this process and of shared memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from khop.cli.doctor.finding import Finding, State

AREA = "limits"
SHARED_MEMORY, INFINIBAND = Path("/dev/shm"), Path("/sys/class/infiniband")
_LEAST_FILES = 1024
_LEAST_SHARED = 1 << 28


def limits(shared: Path = SHARED_MEMORY, infiniband: Path = INFINIBAND) -> Iterator[Finding]:
    """Yield the limits that khop or a library under it can reach."""
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _address_space(resource.getrlimit(resource.RLIMIT_AS)[0])
    yield _shared_memory(shared)
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], infiniband.exists())


def open_files(soft: int, hard: int) -> Finding:
    """Return the finding on the limits of open files."""
    name, shown = "open files", _shown(soft)
    if soft == resource.RLIM_INFINITY or soft >= _LEAST_FILES:
        return Finding(AREA, name, shown)
    is_free = hard == resource.RLIM_INFINITY or hard >= _LEAST_FILES
    remedy = f"ulimit -n {_LEAST_FILES}" if is_free else "raise nofile in /etc/security/limits.conf"
    return Finding(AREA, name, f"{shown}: few for graphs of many files and for servers", State.WRONG, remedy)


def locked_memory(soft: int, has_infiniband: bool) -> Finding:
    """Return the finding on locked memory, which InfiniBand needs."""
    name = "locked memory"
    if not has_infiniband or soft == resource.RLIM_INFINITY:
        return Finding(AREA, name, _bytes(soft))
    found = f"{_bytes(soft)}: NCCL over InfiniBand needs more"
    return Finding(AREA, name, found, State.WRONG, "ulimit -l unlimited")


def _address_space(soft: int) -> Finding:
    if soft == resource.RLIM_INFINITY:
        return Finding(AREA, "address space", "unlimited")
    found = f"{_bytes(soft)}: graphs are mapped, and mappings count"
    return Finding(AREA, "address space", found, State.WRONG, "ulimit -v unlimited")


def _shared_memory(path: Path) -> Finding:
    try:
        size = os.statvfs(path)
    except OSError:
        return Finding(AREA, str(path), "missing: NCCL and Ray need it", State.NOTE)
    free = size.f_bavail * size.f_frsize
    if free >= _LEAST_SHARED:
        return Finding(AREA, str(path), f"{decimal(free)} free")
    found = f"{decimal(free)} free: little for NCCL between GPUs of a machine, and for Ray"
    return Finding(AREA, str(path), found, State.WRONG, "docker run --shm-size 8g ... (in a container)")


def _shown(count: int) -> str:
    return "unlimited" if count == resource.RLIM_INFINITY else f"{count:,}"


def _bytes(count: int) -> str:
    return "unlimited" if count == resource.RLIM_INFINITY else decimal(count)
