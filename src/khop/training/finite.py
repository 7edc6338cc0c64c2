"""Checks that a model's loss, weights and scores are finite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from khop.training.ranking import LOOK_FOR_NAN
from khop.training.trainer_state import TrainerState


def check_loss(loss: float, epoch: int, step: int, checkpoint: Path) -> None:
    """Raise ValueError if the loss of a step is NaN or infinite."""
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss is {loss} in epoch {epoch}, step {step}: {_way_out(checkpoint)}; on a GPU a label "
            "out of range gives such a loss"
        )


def check_weights(model: nn.Module, state: TrainerState, checkpoint: Path) -> None:
    """Raise ValueError if a weight is NaN or infinite: such a model must not be saved in a checkpoint."""
    for name, weights in model.named_parameters():
        if not weights.detach().isfinite().all():
            raise ValueError(
                f"the weights {name!r} are not finite numbers after the update before {_place(state)}: "
                f"{_way_out(checkpoint)}"
            )


@contextmanager
def evaluation_of(model: nn.Module, state: TrainerState, checkpoint: Path) -> Iterator[None]:
    """Add the training position to an evaluation's error, and report NaN weights as its cause."""
    try:
        yield
    except ValueError as error:
        check_weights(model, state, checkpoint)
        if LOOK_FOR_NAN not in str(error):
            raise
        raise ValueError(f"the evaluation at {_place(state)}: {error}; {_holds(checkpoint)}") from error


def _place(state: TrainerState) -> str:
    return f"epoch {state.epoch}, step {state.step}"


def _way_out(checkpoint: Path) -> str:
    return f"lower the learning rate, or look for NaN in the columns; {_holds(checkpoint)}"


def _holds(checkpoint: Path) -> str:
    return f"{checkpoint} is intact"
