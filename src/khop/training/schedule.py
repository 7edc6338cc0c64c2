"""Schedules of the learning rate over the updates of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch.optim.lr_scheduler import LambdaLR

from khop.arguments import check_word, whole_number

Course = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """Learning rate with `warmup` linear warm-up updates, then constant or decaying to 0 at the end."""

    course: Course = "constant"
    warmup: int = 0  # updates

    def __post_init__(self) -> None:
        check_word("course", self.course, Course)
        if whole_number("warmup", self.warmup) < 0:
            raise ValueError(f"warmup {self.warmup}: must be 0 or more updates")

    def factor(self, updates: int, update: int) -> float:
        """Return the factor of the learning rate in update 0, 1, ... of a run of `updates` updates."""
        if update < self.warmup:
            return (update + 1) / (self.warmup + 1)
        if self.course == "constant":
            return 1.0
        done = min((update - self.warmup) / max(updates - self.warmup, 1), 1.0)
        return 1.0 - done if self.course == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    def over(self, optimizer: torch.optim.Optimizer, updates: int) -> LambdaLR:
        """Return torch's scheduler for the optimizer's learning rate; call its step once per update."""
        return LambdaLR(optimizer, partial(self.factor, updates))


CONSTANT = Schedule()
