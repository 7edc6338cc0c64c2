"""Schedules of the learning rate over the updates of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch.optim.lr_scheduler import LambdaLR

from khop.arguments import check_word, instance_of, real_number, whole_number

Course = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Plateau:
    """Reduction of the learning rate while the score on `val` does not improve."""

    factor: float = 0.5  # multiplies the learning rate
    patience: int = 2  # evaluations without improvement, since the best one or the last reduction

    def __post_init__(self) -> None:
        if not 0 < real_number("factor", self.factor) < 1:
            raise ValueError(f"factor {self.factor}: must be above 0 and below 1")
        whole_number("patience", self.patience, 1)


@dataclass(frozen=True)
class Schedule:
    """Learning rate with `warmup` linear warm-up updates, then constant or decaying to 0 at the end.

    A plateau reduces it further.
    """

    course: Course = "constant"
    warmup: int = 0  # updates
    plateau: Plateau | None = None

    def __post_init__(self) -> None:
        check_word("course", self.course, Course)
        if whole_number("warmup", self.warmup) < 0:
            raise ValueError(f"warmup {self.warmup}: must be 0 or more updates")
        if self.plateau is not None:
            instance_of("plateau", self.plateau, Plateau, "must be a khop.Plateau, or None")

    def factor(self, updates: int, update: int) -> float:
        """Return the factor of the learning rate in update 0, 1, ... of a run of `updates` updates."""
        if update < self.warmup:
            return (update + 1) / (self.warmup + 1)
        if self.course == "constant":
            return 1.0
        done = min((update - self.warmup) / max(updates - self.warmup, 1), 1.0)
        return 1.0 - done if self.course == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    def over(
        self, optimizer: torch.optim.Optimizer, updates: int, scale: Callable[[], float] = lambda: 1.0
    ) -> LambdaLR:
        """Return torch's scheduler for the optimizer's learning rate; call its step once per update.

        `scale` returns the factor of the plateau so far.
        """
        return LambdaLR(optimizer, partial(self._scaled, updates, scale))

    def _scaled(self, updates: int, scale: Callable[[], float], update: int) -> float:
        return self.factor(updates, update) * scale()


def set_next(scheduler: LambdaLR) -> None:
    """Set the learning rate of the next update again, after the factor of the plateau has changed."""
    rates = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    for group, base, factor in rates:
        group["lr"] = base * factor(scheduler.last_epoch)


CONSTANT = Schedule()
