"""Steps of training up to the exchanged gradients: computed batch by batch, or by recorded launches."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from khop.batch import Batch
from khop.draw import DrawKey, Purpose, mix64
from khop.runtime.group import Group
from khop.training.batch_loader import BatchLoader
from khop.training.finite import check_loss
from khop.training.gradients import GradientClock, averaging
from khop.training.model_optimizer import ModelOptimizer
from khop.training.move import in_dtype_of
from khop.training.settings import TrainerSettings
from khop.training.step_clock import StepClock
from khop.training.step_log import DeviceLoss
from khop.training.tasks import Task


@dataclass(frozen=True)
class ComputedStep:
    """A step; its gradients, averaged over the ranks, are in the parameters."""

    batch: Batch  # of this rank
    seeds: int  # losses, or groups of seeds, of this rank
    loss_sum: float | DeviceLoss  # sum of the losses: of this rank, or of all ranks on the device
    ready_at: float | None = None  # moment at which this rank waited for the others; None: unknown


class Steps(Protocol):
    """Implementers compute the steps of a trainer."""

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch, each once its gradients are exchanged. Collective."""
        ...

    def state(self) -> dict[str, object]:
        """Return plain values for a checkpoint, to have the same shapes after a resume."""
        ...


class EagerSteps:
    """Steps of batches with their own shapes, launched operation by operation."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        loader: BatchLoader,
        settings: TrainerSettings,
        optimizer: ModelOptimizer,
        group: Group,
        checkpoint: Path,
    ) -> None:
        self._model, self._task, self._loader = model, task, loader
        self._settings, self._optimizer, self._group = settings, optimizer, group
        self._checkpoint = checkpoint  # named in errors
        self._gradients = GradientClock()
        self._parallel = averaging(group, model, self._gradients)

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch; see Steps."""
        for batch in self._loader.epoch(epoch):
            clock.received(batch)
            yield self._computed(batch, clock)

    def state(self) -> dict[str, object]:
        """Return no values: every batch has its own shapes."""
        return {}

    def _computed(self, batch: Batch, clock: StepClock) -> ComputedStep:
        settings, group, position = self._settings, self._group, (batch.epoch, batch.step)
        torch.manual_seed(dropout_seed(settings.seed, *position, group.rank).value)
        with (
            group.exchanging("computing the loss", *position),
            torch.autocast(settings.device_type, torch.bfloat16, enabled=settings.precision == "bfloat16"),
        ):
            losses = self._task.losses(self._parallel(in_dtype_of(self._model, batch)), batch)
        loss_sum = float(batch.sample.weighted(losses.detach().double(), batch.num_global_seeds).sum())
        check_loss(loss_sum, *position, self._checkpoint)
        num_seeds = losses.numel() if batch.sample.num_groups is None else batch.sample.num_groups
        clock.lap("computing", "forward")
        self._optimizer.zero_grad()
        with group.exchanging("exchanging gradients", *position):
            torch.autograd.backward(batch.global_mean(losses))
            self._optimizer.exchange()
            self._optimizer.clip(group)
        clock.lap("computing", "backward", until=self._gradients.ready_at)
        clock.lap("communicating", "gradients")
        return ComputedStep(batch, num_seeds, loss_sum, self._gradients.ready_at)


def dropout_seed(seed: int, epoch: int, step: int, rank: int) -> DrawKey:
    """Return the key of a rank's dropout in a step."""
    key = DrawKey.of(seed, Purpose.DROPOUT, epoch, step)
    return DrawKey(mix64(key.value ^ mix64(rank)))
