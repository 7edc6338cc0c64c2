"""Number of threads that this process should use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # "<microseconds or max> <period>", in containers


def allowed_cores() -> int:
    """Return the number of cores that this process may use; all on a system without affinity (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def usable_cores(limit: Path = CGROUP_LIMIT) -> int:
    """Return the number of cores that this process may use, limited by the container's CPU quota."""
    cores = allowed_cores()
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def cores_of_rank(ranks_here: int) -> int:
    """Return the number of cores per rank, for `ranks_here` ranks on this machine."""
    return max(1, usable_cores() // ranks_here)


def sampler_threads(cores: int) -> int:
    """Return the number of threads that make batches while training uses all `cores`: about a quarter.

    The minimum is two, unless there is only one core. A batch waits for memory more than it computes, and on
    two cores two threads are the fastest in benchmarks/threads.py.
    """
    return min(cores, max(2, cores // 4))
