"""Findings on the cores that this process may use, and on waiting threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from khop.cli.doctor.finding import Finding, State
from khop.loading.cores import CGROUP_LIMIT, allowed_cores, usable_cores

AREA = "cores"
_SPINNING = "active"


def cores(
    environment: Mapping[str, str], limit: Path = CGROUP_LIMIT, load: float | None = None
) -> Iterator[Finding]:
    """Yield the usable cores, their load, and the settings of OpenMP.

    `load` is the number of running threads of the machine, by default the mean of the last minute.
    """
    of_machine, allowed, usable = os.cpu_count() or 1, allowed_cores(), usable_cores(limit)
    reasons = [f"{of_machine} in the machine"]
    if allowed < of_machine:
        reasons.append(f"{allowed} by affinity (taskset, Slurm or a container)")
    if usable < allowed:
        reasons.append(f"{usable} by the control group's quota")
    yield Finding(AREA, "usable cores", f"{usable} ({', '.join(reasons)})")
    yield _load(os.getloadavg()[0] if load is None else load, of_machine)
    yield from _openmp(environment, usable)


def _load(load: float, of_machine: int) -> Finding:
    if load <= of_machine:
        return Finding(AREA, "load", f"{load:.1f} running threads on {of_machine} cores")
    found = f"{load:.1f} running threads on {of_machine} cores: other programs take the cores"
    return Finding(AREA, "load", found, State.WRONG, "top -o %CPU (shows these programs)")


def _openmp(environment: Mapping[str, str], usable: int) -> Iterator[Finding]:
    policy = environment.get("OMP_WAIT_POLICY", "")
    if policy.lower() == _SPINNING:
        found = "OMP_WAIT_POLICY=active: idle compute threads take the cores of sampler threads"
        yield Finding(AREA, "OpenMP waiting", found, State.WRONG, "unset OMP_WAIT_POLICY")
    else:
        note = "idle threads sleep: khop sets it for its command, and for a script at its first epoch"
        yield Finding(AREA, "OpenMP waiting", f"{policy or 'not set'} ({note})")
    threads = environment.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > usable:
        found = f"OMP_NUM_THREADS={threads}, more than the usable cores"
        yield Finding(AREA, "OpenMP threads", found, State.WRONG, "unset OMP_NUM_THREADS")
