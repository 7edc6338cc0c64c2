"""The number of machines that a graph needs, given the memory of each machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from khop.planning.constants import Constants
from khop.planning.prediction import Placement, predict
from khop.planning.workload import Cluster, GraphSize, Run

_MOST = 1 << 16


def fewest_machines(
    graph: GraphSize, run: Run, cluster: Cluster, constants: Constants, memory_bytes: float
) -> Mapping[Placement, int | None]:
    """Find the smallest sufficient number of machines by placement; None if no number is sufficient.

    The machines are like the machines of `cluster`, with the same number of seeds per machine. The search
    is a bisection, because the memory needed per machine never grows with the number of machines.
    """
    if not 0 < memory_bytes < math.inf:
        raise ValueError(f"memory {memory_bytes / 1e9:g} GB: must be a number above 0")
    seeds = run.batch_size / cluster.machines

    def fits(placement: Placement, machines: int) -> bool:
        of_all = replace(run, batch_size=max(1, round(seeds * machines)))
        plans = predict(graph, of_all, replace(cluster, machines=machines), constants)
        return next(plan for plan in plans if plan.placement is placement).memory.total <= memory_bytes

    found: dict[Placement, int | None] = {}
    for placement in Placement:
        low, high = 0, 1  # `low` is too small, `high` may be sufficient
        while high <= _MOST and not fits(placement, high):
            low, high = high, 2 * high
        while high - low > 1 and high <= _MOST:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(placement, middle) else (middle, high)
        found[placement] = high if high <= _MOST else None
    return found
