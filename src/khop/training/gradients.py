"""Gradient averaging over ranks, with DistributedDataParallel or in buckets after the backward pass.

Buffers that steps change are those of rank 0 on all ranks, and copied after each update.
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


@dataclass
class GradientClock:
    """Time at which the last backward pass of this rank finished, before the wait for other ranks."""

    ready_at: float | None = (
        None  # of the last bucket, by time.monotonic; None before the first, and with one rank
    )


def averaging(group: Group, model: nn.Module, clock: GradientClock) -> nn.Module:
    """Wrap a model so that its gradients are averaged over the ranks; weights are broadcast from rank 0.

    Buffers are left to `StepBuffers`. With one rank, the model itself is returned. A parameter that the batch
    of a rank does not reach contributes zeros. A parameter that is not reached on any rank has no gradient,
    as in one process. Buckets never change, so sums are the same after a resume.
    """
    if group.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    # It has shared all buffers, and would in every step, also large tables that steps do not change. An
    # attribute, because the argument would not share them here either, and has another name since torch 2.13.
    parallel.broadcast_buffers = False
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
    """The buffers of a model that steps change, such as statistics of BatchNorm.

    They are statistics, and the buffers that the first step changes on a rank. Others, such as tables of hard
    negatives, are neither exchanged nor copied in later steps.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._model, self._group = model, group
        self._changing: list[str] | None = None  # names; None before the first update
        self._copies: dict[str, Tensor] = {}  # after the last update

    def share(self) -> None:
        """Take those of rank 0 after the backward pass of a step. Collective."""
        if self._changing is None:
            self._changing = self._found()
        if self._changing:
            buffers = dense_buffers(self._model)
            broadcast(self._group, [buffers[name] for name in self._changing if name in buffers])

    def keep(self) -> None:
        """Copy the buffers: before the first step all of them, to host memory, then those that change."""
        if self._changing is None:
            found = dense_buffers(self._model)
            self._copies = {name: buffer.to("cpu", copy=True) for name, buffer in found.items()}
        elif self._changing or self._copies:
            found = dense_buffers(self._model)
            self._copies = {name: found[name].clone() for name in self._changing if name in found}

    def restore(self) -> None:
        """Undo the changes of a step that was not finished."""
        restore_buffers(self._model, self._copies)

    def _found(self) -> list[str]:
        """Return the names of the buffers that the first step changes on a rank, and of all statistics."""
        statistics = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self._model.named_modules()
            for name, _ in module.named_buffers(recurse=False)
            if getattr(module, "running_mean", None) is not None
        }
        changed, names = changed_buffers(self._model, self._copies), list(self._copies)
        if not names:
            return []
        changes = torch.tensor([name in statistics or name in changed for name in names], dtype=torch.int64)
        return [
            name for name, of in zip(names, self._group.gather(changes).T.tolist(), strict=True) if any(of)
        ]


def dense_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a model by name, without sparse ones."""
    return {name: of.detach() for name, of in model.named_buffers() if of.layout is torch.strided}


def changed_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the buffers that differ from copies in host memory; NaN is NaN."""
    found = {name: buffer.cpu() for name, buffer in dense_buffers(model).items() if name in before}
    return [
        name
        for name, buffer in found.items()
        if not torch.equal(buffer, before[name])
        and not (
            buffer.shape == before[name].shape
            and torch.allclose(buffer, before[name], rtol=0, atol=0, equal_nan=True)
        )
    ]


def restore_buffers(model: nn.Module, copies: Mapping[str, Tensor]) -> None:
    """Set buffers to copies, also those that have another shape by now."""
    for name, buffer in dense_buffers(model).items():
        if name in copies and buffer.shape == copies[name].shape:
            buffer.copy_(copies[name])
        elif name in copies:
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, copies[name].to(buffer.device))


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
