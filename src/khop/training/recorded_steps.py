"""Steps of a trainer by recorded launches, on batches that a device makes. Importing this imports Triton."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from khop.errors import Unsupported
from khop.loading.batch_slot import StepInput
from khop.loading.static_batches import StaticBatches, StaticLoop
from khop.runtime.group import Group
from khop.training.captured_steps import CapturedSteps
from khop.training.gradients import BucketAverage, broadcast_weights
from khop.training.optimizer_settings import clip_gradients, square_sum
from khop.training.settings import TrainerSettings
from khop.training.step_clock import StepClock
from khop.training.step_log import DeviceLoss
from khop.training.steps import ComputedStep, dropout_seed
from khop.training.tasks import Task

_DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


class RecordedSteps:
    """Steps that replay recorded launches: one call for the next batch, and one for the gradients.

    Batches are made ahead on a stream of their own. A batch that exceeds the recorded shapes is made and
    computed operation by operation, in its turn. Averages over the ranks and the limit of the norm follow
    outside of the recording, the same after both kinds, so that one rank may exceed while others replay.
    """

    def __init__(
        self, model: nn.Module, task: Task, batches: StaticBatches, settings: TrainerSettings, group: Group
    ) -> None:
        room = batches.room
        self._batches, self._settings, self._group = batches, settings, group
        model.train()
        self._steps = CapturedSteps(
            model, task, room.slots, room.streams, _DTYPES[settings.precision], room.stream
        )
        self._average = BucketAverage(group, self._steps.gradients)
        self._loss = torch.zeros((), dtype=torch.float64, device=room.streams.device)
        # A slot is filled again after the step that used it.
        self._device_loss = DeviceLoss(self._loss, room.streams, behind=len(room.slots))

    @property
    def overflows(self) -> int:
        """Batches of this rank that exceeded the recorded shapes."""
        return self._steps.overflows

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch; see Steps."""
        loop, order = self._batches.epoch(epoch), self._batches.order
        seeds: list[int] = []
        inputs = self._inputs(loop, epoch, seeds)
        for step, loss in zip(loop.steps, self._steps.losses(inputs), strict=True):
            clock.lap("computing", "launches")
            with self._group.exchanging("exchanging gradients", epoch, step):
                self._exchange(loss, order.num_global_seeds(step))
            clock.lap("communicating", "gradients")
            loop.received(step)
            shapes = self._batches.room.slots[0].batch
            batch = replace(
                shapes,
                epoch=epoch,
                step=step,
                num_global_seeds=order.num_global_seeds(step),
                traffic=self._steps.traffic,
            )
            yield ComputedStep(batch, seeds.pop(0), self._device_loss)

    def state(self) -> dict[str, object]:
        """Return the capacities of the batches; see Steps."""
        return self._batches.state()

    def _inputs(self, loop: StaticLoop, epoch: int, seeds: list[int]) -> Iterator[StepInput]:
        """Yield the inputs of the steps with their keys of dropout, and note their numbers of seeds."""
        for step, given in zip(loop.steps, loop.inputs(), strict=True):
            key = dropout_seed(self._settings.seed, epoch, step, self._group.rank)
            seeds.append(given.num_seeds)
            yield replace(given, dropout_key=key)

    def _exchange(self, loss: Tensor, seeds: int) -> None:
        """Average the gradients over the ranks and limit their norm; keep the sum of the losses."""
        self._loss.copy_(loss)
        self._average.average(self._loss)
        self._loss.mul_(seeds)  # the weights of a rank are the number of ranks per seed of the step
        limit = self._settings.optimizer.clip_norm
        if limit is not None:
            gradients = self._steps.gradients
            clip_gradients(gradients, square_sum(gradients), limit)


def why_not_recorded(model: nn.Module) -> str | None:
    """Return the reason why steps of a model cannot be recorded; None if none is known."""
    for name, module in model.named_modules():
        kind = f"{name or 'the model'} ({type(module).__name__})"
        if getattr(module, "running_mean", None) is not None or isinstance(
            module, nn.modules.batchnorm._BatchNorm
        ):
            return f"{kind} takes statistics over the rows of a batch, and recorded batches have unused rows"
        if getattr(module, "sparse", False) is True or hasattr(module, "take_gradients"):
            return f"{kind} has sparse gradients, whose number of rows changes"
    return None


def recorded_steps(
    model: nn.Module, task: Task, batches: StaticBatches, settings: TrainerSettings, group: Group
) -> RecordedSteps:
    """Record the steps of a model. Unsupported, on all ranks, if that fails on one. Collective."""
    reason, steps = why_not_recorded(model), None
    if reason is None:
        try:
            steps = RecordedSteps(model, task, batches, settings, group)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that waits for the device cannot be recorded
            reason = f"recording the step failed: {str(error).splitlines()[0]}"
    if group.world_size > 1:
        failed = group.gather(torch.tensor([steps is None]))
        if steps is not None and bool(failed.any()):
            steps, reason = None, "recording the step failed on another rank"
    if steps is None:
        for parameter in model.parameters():
            parameter.grad = None
        raise Unsupported(reason or "")
    broadcast_weights(group, model)
    return steps
