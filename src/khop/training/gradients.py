"""Gradient averaging over ranks, with DistributedDataParallel or in buckets after the backward pass.

Copies of a model's buffers undo a step that was not finished.
"""

# No `from __future__ import annotations`: DistributedDataParallel reads the types of a hook's arguments.

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from khop.distributed.processes.group import Group
from khop.distributed.processes.watch import GradBucket

_BUCKET_BYTES = 25 << 20  # as DistributedDataParallel's
_COPIED_BYTES = 1 << 20  # of a buffer


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
    """Overwrite tensors by those of rank 0, small ones together. Collective."""
    if group.world_size == 1:
        return
    for bucket in _buckets((tensor.detach() for tensor in tensors), _BUCKET_BYTES):
        if len(bucket) == 1:
            group.share_rows(bucket, [0])
            continue
        room = torch.cat([tensor.reshape(-1) for tensor in bucket])
        group.share_rows([room], [0])
        parts = room.split([tensor.numel() for tensor in bucket])
        torch._foreach_copy_(bucket, [part.view_as(to) for part, to in zip(parts, bucket, strict=True)])


class StepBuffers:
    """Copies of the buffers of a model after its last update, such as statistics of BatchNorm.

    Buffers above `_COPIED_BYTES`, such as tables of hard negatives, are not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copies: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Copy the buffers."""
        found = dense_buffers(self._model)
        small = {name: buffer for name, buffer in found.items() if buffer.nbytes <= _COPIED_BYTES}
        self._copies = {name: buffer.clone() for name, buffer in small.items()}

    def restore(self) -> None:
        """Undo the changes of a step that was not finished."""
        restore_buffers(self._model, self._copies)


def dense_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a model by name, without sparse ones and those without data."""
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
    return {name: of for name, of in buffers.items() if of.layout is torch.strided and not of.is_meta}


def restore_buffers(model: nn.Module, copies: Mapping[str, Tensor]) -> list[str]:
    """Set buffers that differ from copies to these, whatever their shape is now; return their names."""
    changed = []
    for name, buffer in dense_buffers(model).items():
        if name not in copies or _is_equal(buffer, kept := copies[name].to(buffer.device)):
            continue
        changed.append(name)
        if buffer.shape == kept.shape:
            buffer.copy_(kept)
        else:
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, kept)
    return changed


def _is_equal(some: Tensor, other: Tensor) -> bool:
    """Return True if all bits are equal."""
    if some.shape != other.shape or some.dtype != other.dtype:
        return False
    first, second = (tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (some, other))
    return torch.equal(first, second)


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
