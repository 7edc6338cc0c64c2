"""Gradient averaging over ranks, with DistributedDataParallel or in buckets after the backward pass."""

# No `from __future__ import annotations`: DistributedDataParallel reads the types of a hook's arguments.

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from khop.distributed.processes.group import Group
from khop.distributed.processes.watch import GradBucket

_BUCKET_BYTES = 25 << 20  # as DistributedDataParallel's


@dataclass
class GradientClock:
    """Time at which the last backward pass of this rank finished, before the wait for other ranks."""

    ready_at: float | None = (
        None  # of the last bucket, by time.monotonic; None before the first, and with one rank
    )


def averaging(group: Group, model: nn.Module, clock: GradientClock) -> nn.Module:
    """Wrap a model so that its gradients are averaged over the ranks; weights are broadcast from rank 0.

    Each forward pass begins with the buffers of rank 0. With one rank, the model itself is returned. A
    parameter that the batch of a rank does not reach contributes zeros. One that no rank reaches has no
    gradient, as in one process. Buckets never change, so sums are the same after a resume.
    """
    if group.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    parallel.register_comm_hook(clock, _timed_average)
    return parallel


def not_yet_averaged(parallel: nn.Module) -> AbstractContextManager[None]:
    """Keep gradients on this rank inside the block; the next backward pass outside averages their sum."""
    if not isinstance(parallel, DistributedDataParallel):
        return nullcontext()
    block: AbstractContextManager[None] = parallel.no_sync()
    return block


def _timed_average(clock: GradientClock, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    clock.ready_at = time.monotonic()
    share = bucket.buffer().div_(distributed.get_world_size())  # before the sum, so that it cannot overflow
    reduced: torch.futures.Future[list[Tensor]] = distributed.all_reduce(share, async_op=True).get_future()
    return reduced.then(lambda done: done.value()[0])


class BucketAverage:
    """Averages of gradients over the ranks in buckets, outside of recorded steps.

    Buckets hold gradients in the order of the model, so sums are the same on every rank, in every step and
    after a resume. Nothing waits on the host with NCCL.
    """

    def __init__(self, group: Group, gradients: Sequence[Tensor], bucket_bytes: int = _BUCKET_BYTES) -> None:
        self._world_size = group.world_size
        self._buckets = list(_buckets(gradients, bucket_bytes)) if group.world_size > 1 else []
        self._rooms = [_room(bucket) for bucket in self._buckets]

    def average(self) -> None:
        """Average all gradients in place. Collective."""
        works = []
        for bucket, room in zip(self._buckets, self._rooms, strict=True):
            torch.cat([gradient.reshape(-1) for gradient in bucket], out=room)
            room.div_(self._world_size)  # before the sum, so that it cannot overflow
            works.append(distributed.all_reduce(room, async_op=True))
        for work in works:
            work.wait()
        for bucket, room in zip(self._buckets, self._rooms, strict=True):
            parts = room.split([gradient.numel() for gradient in bucket])
            torch._foreach_copy_(bucket, [p.view_as(g) for p, g in zip(parts, bucket, strict=True)])


def broadcast(group: Group, tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors by those of rank 0. Collective."""
    detached = [tensor.detach() for tensor in tensors]
    group.share_rows(detached, [0] * len(detached))


def _buckets(gradients: Iterable[Tensor], most: int) -> Iterable[list[Tensor]]:
    """Yield gradients of one dtype in groups of up to `most` bytes, a larger one alone."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or size + gradient.nbytes > most):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


def _room(bucket: Sequence[Tensor]) -> Tensor:
    return bucket[0].new_empty(sum(gradient.numel() for gradient in bucket))
