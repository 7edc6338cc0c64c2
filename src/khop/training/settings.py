"""Settings of a training run as one validated value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from khop.arguments import LARGEST_SEED, check_word, checked_field, instance_of, real_number, whole_number
from khop.loading.device.transfer import device_of
from khop.training.optimizer_settings import ADAM, CONSTANT, OptimizerSettings, Schedule

Precision = Literal["float32", "tf32", "float64", "bfloat16"]
Launches = Literal["auto", "single", "recorded"]


@dataclass(frozen=True)
class CheckpointPolicy:
    """Frequency of checkpoints within an epoch; the end of an epoch always makes one.

    Args:
        steps: Updates between checkpoints. None (default): not by updates.
        minutes: Minutes between checkpoints, default 5. None: not by time.
        keep: Number of most recent checkpoints to keep, default 2; if one is damaged, an older one is used.
        best: Number of checkpoints with the best scores to keep: best, best-1 (the second), ... Default
            1.
    Raises:
        ValueError: A number is not positive.
    Example:
        >>> settings = khop.TrainerSettings(epochs=3, checkpoints=khop.CheckpointPolicy(steps=1000, keep=3))
    """

    steps: int | None = None
    minutes: float | None = 5.0
    keep: int = 2
    best: int = 1

    def __post_init__(self) -> None:
        if self.steps is not None and checked_field(self, "steps", whole_number) < 1:
            raise ValueError(f"steps {self.steps}: must be at least 1, or None")
        if self.minutes is not None and not checked_field(self, "minutes", real_number) > 0:
            raise ValueError(f"minutes {self.minutes}: must be positive, or None")
        for name in ("keep", "best"):
            if checked_field(self, name, whole_number) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 1")


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of a training run.

    Args:
        epochs: Number of epochs.
        learning_rate: Learning rate, default 0.001.
        schedule: Schedule of the learning rate, by default constant.
        weight_decay: Weight decay, default 0.
        optimizer: Optimizer of the weights, by default Adam.
        evaluate_every: Epochs between evaluations, default 1. 0.05 means 20 per epoch, and
            `500 / len(loader)` one every 500 steps. The final state is always evaluated.
        patience: Evaluations without improvement before training stops. None (default): never.
        max_steps: Maximum number of steps. None (default): no limit.
        target: Metric and score of `val`, such as `("accuracy", 0.72)`; the first evaluation that reaches
            it ends the training. None (default): no target.
        precision: "float32" (default), "float64", "tf32" for matrix products on a GPU, or "bfloat16" with
            autocast, in which parameters, moments and losses stay float32.
        seed: Random seed of dropout, default 0.
        device: Device of the model, default "cpu".
        launches: Kernel launches of steps on a GPU: "single": one by one; "recorded": as CUDA graphs if
            possible; "auto" (default): as CUDA graphs if a resumed run also stays bit-identical.
        checkpoints: Frequency and number of checkpoints, `CheckpointPolicy()` by default.
        facts: Identity of the run, such as the graph's fingerprint, which must be equal on all ranks, and
            when the run is resumed. Default none.
    Raises:
        ValueError: A setting is out of range, or conflicts with another one.
    Example:
        >>> settings = khop.TrainerSettings(epochs=3, learning_rate=0.01, patience=2)
        >>> settings.device_type
        'cpu'
    """

    epochs: int
    learning_rate: float = 1e-3
    schedule: Schedule = CONSTANT
    weight_decay: float = 0.0
    optimizer: OptimizerSettings = ADAM
    evaluate_every: float = 1
    patience: int | None = None
    max_steps: int | None = None
    target: tuple[str, float] | None = None
    precision: Precision = "float32"
    seed: int = 0
    device: str = "cpu"
    launches: Launches = "auto"
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    facts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if checked_field(self, "epochs", whole_number) < 1:
            raise ValueError(f"epochs {self.epochs}: must be at least 1")
        if not 0 < checked_field(self, "evaluate_every", real_number) < math.inf:
            raise ValueError(f"evaluate_every {self.evaluate_every}: must be positive")
        if self.max_steps is not None and checked_field(self, "max_steps", whole_number) < 1:
            raise ValueError(f"max_steps {self.max_steps}: must be at least 1, or None for no limit")
        if self.target is not None:
            _check_target(self.target)
        checked_field(self, "seed", whole_number, 0, LARGEST_SEED)
        device_of(self.device)
        if not 0 < checked_field(self, "learning_rate", real_number) < math.inf:
            raise ValueError(f"learning_rate {self.learning_rate}: must be positive")
        if not 0 <= checked_field(self, "weight_decay", real_number) < math.inf:
            raise ValueError(f"weight_decay {self.weight_decay}: must not be negative")
        if self.patience is not None and checked_field(self, "patience", whole_number) < 1:
            raise ValueError(f"patience {self.patience}: must be at least 1, or None to never stop early")
        instance_of("optimizer", self.optimizer, OptimizerSettings, "must be a khop.OptimizerSettings")
        if self.weight_decay:
            self.optimizer.over([torch.nn.Parameter(torch.zeros(1, 1))], 1e-3, self.weight_decay)
        check_word("precision", self.precision, Precision)
        check_word("launches", self.launches, Launches)
        if self.precision == "tf32" and self.device_type != "cuda":
            raise ValueError(
                f"precision 'tf32': only GPUs compute products in TF32, and device is {self.device!r}; use "
                "float32"
            )

    @property
    def device_type(self) -> str:
        """Device type without its number: "cpu", "cuda"."""
        return str(self.device).partition(":")[0]


def fixed_settings(settings: TrainerSettings) -> dict[str, str]:
    """Return the settings that determine every update, by name: a run must be resumed with the same.

    A cosine or linear schedule depends on the number of updates.
    """
    optimizer, course = settings.optimizer, settings.schedule.course
    found = {
        "learning rate": str(float(settings.learning_rate)),
        "weight decay": str(float(settings.weight_decay)),
        "schedule": str(settings.schedule),
        "optimizer": optimizer.kind.__name__,
        "options of the optimizer": str(dict(sorted(optimizer.options.items()))),
        "clip_norm": str(optimizer.clip_norm and float(optimizer.clip_norm)),
        "precision": settings.precision,
        "seed": str(settings.seed),
    }
    if course != "constant":
        found |= {
            f"epochs, for the {course} schedule,": str(settings.epochs),
            f"max_steps, for the {course} schedule,": str(settings.max_steps),
        }
    return found


def _check_target(target: object) -> None:
    match target:
        case (str() as metric, value) if metric:
            real_number("target", value)
        case _:
            raise ValueError(f'target {target!r}: must be a metric and a score, such as ("accuracy", 0.72)')
