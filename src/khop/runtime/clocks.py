"""A common clock for all ranks: the offset of each machine's clock from the clock of rank 0."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from khop.runtime.group import Group

_ROUNDS = 8


def clock_offset(group: Group) -> float:
    """Return the seconds by which this rank's `time.monotonic` is ahead of rank 0's. Collective.

    Processes on one machine share the clock: the offset is 0. Across machines it is an estimate. Its error is
    less than half the duration of the shortest of eight exchanges.
    """
    if group.world_size == 1:
        return 0.0
    with group.exchanging("comparing clocks"):
        passed: list[list[float]] = []
        for _ in range(_ROUNDS):
            entered = time.monotonic()
            group.barrier()
            passed.append([entered, time.monotonic()])
        of_all = group.gather(torch.tensor(passed, dtype=torch.float64))
    return offset_between(of_all[group.rank], of_all[0])


def offset_between(own: Tensor, other: Tensor) -> float:
    """Return the seconds by which one clock is ahead of another.

    `own` and `other`, both (rounds, 2), hold the times at which each side entered and left the same
    exchanges. An exchange ends on no rank before all ranks have entered it, which bounds the offset from both
    sides. If the bounds include 0, the offset is 0: both clocks may be the same.
    """
    least = float((own[:, 0] - other[:, 1]).max())
    most = float((own[:, 1] - other[:, 0]).min())
    return 0.0 if least <= 0 <= most else (least + most) / 2
