"""Gradients averaged over ranks by DistributedDataParallel, and how long that is waited for."""

# No `from __future__ import annotations`: DistributedDataParallel reads the types of a hook's arguments.

import time
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from khop.distributed.group import Group
from khop.distributed.torch_types import GradBucket


@dataclass
class GradientClock:
    """When this rank's own part of the last backward pass was done."""

    ready_at: float | None = None  # of the last bucket, by time.monotonic; None before, and alone


def averaging(group: Group, model: nn.Module, clock: GradientClock) -> nn.Module:
    """The model with gradients averaged over the ranks; rank 0's weights go to all. Alone, the model itself.

    Parameters that one rank's batch does not reach take part with zeros; those that no rank's reaches keep no
    gradient, as in one process. Buckets never change, so that sums are the same after a resume.
    """
    if group.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    parallel.register_comm_hook(clock, _timed_average)
    return parallel


def _timed_average(clock: GradientClock, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    clock.ready_at = time.monotonic()
    share = bucket.buffer().div_(distributed.get_world_size())  # before the sum: it may not overflow
    reduced: torch.futures.Future[list[Tensor]] = distributed.all_reduce(share, async_op=True).get_future()
    return reduced.then(lambda done: done.value()[0])
