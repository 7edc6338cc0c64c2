"""How to train, as one checked value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["float32", "float64", "bfloat16"]


@dataclass(frozen=True)
class TrainerSettings:
    """How to train."""

    epochs: int
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    evaluate_every: int = 1  # epochs; the last one is always evaluated
    patience: int | None = None  # evaluations without a better score before training stops; None = never
    precision: Precision = "float32"  # bfloat16 by autocast: parameters, moments and losses stay float32
    seed: int = 0  # of dropout
    rank: int = 0
    device: str = "cpu"
    config_hash: str = ""  # kept in checkpoints for whoever resumes

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate {self.learning_rate}: must be positive")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay {self.weight_decay}: must not be negative")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience {self.patience}: must be at least 1, or None to never stop early")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision {self.precision!r}: must be one of {get_args(Precision)}")
