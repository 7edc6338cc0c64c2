"""Gradient averaging over ranks with DistributedDataParallel, and the start time of the wait for it."""

# No `from __future__ import annotations`: DistributedDataParallel reads the types of a hook's arguments.

import time
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from khop.runtime.group import Group
from khop.runtime.torch_types import GradBucket


@dataclass
class GradientClock:
    """Time at which the last backward pass of this rank finished, before the wait for other ranks."""

    ready_at: float | None = None  # last bucket, by time.monotonic; None before the first, and with one rank


def averaging(group: Group, model: nn.Module, clock: GradientClock) -> nn.Module:
    """Wrap a model so that its gradients are averaged over the ranks; weights are broadcast from rank 0.

    With one rank the model itself is returned. A parameter that the batch of one rank does not reach
    contributes zeros. A parameter that no rank's batch reaches keeps no gradient, as in one process. Buckets
    never change, so sums are the same after a resume.
    """
    if group.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    parallel.register_comm_hook(clock, _timed_average)
    return parallel


def _timed_average(clock: GradientClock, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    clock.ready_at = time.monotonic()
    share = bucket.buffer().div_(distributed.get_world_size())  # before the sum, so that it cannot overflow
    reduced: torch.futures.Future[list[Tensor]] = distributed.all_reduce(share, async_op=True).get_future()
    return reduced.then(lambda done: done.value()[0])
