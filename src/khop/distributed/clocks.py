"""One clock for all ranks: how far each machine's own is ahead of rank 0's."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from khop.distributed.group import Group

_ROUNDS = 8


def clock_offset(group: Group) -> float:
    """Seconds that this rank's `time.monotonic` is ahead of rank 0's. Collective.

    0 between processes of one machine, which share it. Over machines an estimate, as exact as an exchange is
    quick: its error is less than half the time that the quickest of eight takes.
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
    """How far one clock is ahead of another, from when either side entered and left the same exchanges.

    Both are (rounds, 2). Nobody leaves an exchange before all have entered it: that bounds the offset from
    both sides. Clocks that may be the same one are taken for it.
    """
    least = float((own[:, 0] - other[:, 1]).max())
    most = float((own[:, 1] - other[:, 0]).min())
    return 0.0 if least <= 0 <= most else (least + most) / 2
