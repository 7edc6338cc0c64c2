"""How many threads this process may well use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # "<microseconds or max> <period>", as containers have it


def usable_cores(limit: Path = CGROUP_LIMIT) -> int:
    """The cores that this process may run on, no more than its container pays for."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def cores_of_rank(ranks_here: int) -> int:
    """The cores that are one rank's, of so many on this machine."""
    return max(1, usable_cores() // ranks_here)


def sampler_threads(cores: int) -> int:
    """How many threads should make batches beside a training that uses all `cores`: a quarter, mostly.

    Two where there are two cores: a batch waits for memory more than it computes, and the best of
    benchmarks/threads.py has two.
    """
    return min(cores, max(2, cores // 4))
