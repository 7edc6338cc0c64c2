"""State of a training run, as stored in checkpoints, and checks that losses and weights are finite.

Also copies of a model's buffers, which undo a step that was not finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from khop.training.metrics import LOOK_FOR_NAN, is_better
from khop.training.optimizer_settings import Plateau
from khop.training.run_log import Record


@dataclass(frozen=True)
class TrainerState:
    """State of a training run that a checkpoint stores next to the tensors."""

    epoch: int = 0  # of the next update
    step: int = 0  # of the next update
    loss_sum: float = 0.0  # of the epoch so far, over its seeds
    seeds: int = 0  # of the epoch so far
    traffic: Mapping[str, float] = field(default_factory=dict)  # of the epoch so far, over all ranks
    best_score: float | None = None
    best_epoch: int = 0
    stale: int = 0  # evaluations since the best one
    loader: Mapping[str, object] = field(default_factory=dict)
    schedule: Mapping[str, object] = field(default_factory=dict)  # torch's scheduler of the learning rate
    facts: Mapping[str, str] = field(default_factory=dict)  # facts of the settings it was made with
    linear: Mapping[str, str] = field(default_factory=dict)  # way to compute layers, by dtype
    plateau_scale: float = 1.0  # factor of the learning rate, reduced at plateaus
    plateau_stale: int = 0  # evaluations without improvement since the best one or the last reduction
    shapes: Mapping[str, Any] = field(default_factory=dict)  # capacities of recorded steps' batches
    evaluations: Sequence[Record] = ()  # lines of steps.jsonl with scores: evaluations within epochs
    settings: Mapping[str, str] = field(default_factory=dict)  # fixed_settings
    is_finished: bool = False  # before the last epoch: by the number of steps, or by the target

    def updates(self, steps: int) -> int:
        """Return the number of updates so far, with `steps` per epoch."""
        return self.epoch * steps + self.step

    @property
    def is_evaluated(self) -> bool:
        """True after an evaluation within an epoch, and at the start of an epoch."""
        last = self.evaluations[-1] if self.evaluations else {}
        return self.step == 0 or (last.get("epoch"), last.get("step")) == (self.epoch, self.step - 1)

    def ended(self) -> TrainerState:
        """Return the state at the start of the next epoch."""
        return replace(self, epoch=self.epoch + 1, step=0, loss_sum=0.0, seeds=0, traffic={})

    def scored(self, score: float, metric: str = "", plateau: Plateau | None = None) -> TrainerState:
        """Return the state with the score of an evaluation.

        The name of the metric decides whether a higher or a lower score is better. With a plateau, too many
        evaluations without improvement reduce the scale of the learning rate.
        """
        if is_better(metric, score, self.best_score):
            return replace(self, best_score=score, best_epoch=self.epoch, stale=0, plateau_stale=0)
        following = replace(self, stale=self.stale + 1)
        if plateau is None:
            return following
        if self.plateau_stale + 1 < plateau.patience:
            return replace(following, plateau_stale=self.plateau_stale + 1)
        return replace(following, plateau_stale=0, plateau_scale=self.plateau_scale * plateau.factor)

    def check(self, steps: int, records: int, folder: Path) -> None:
        """Raise ValueError if the state is inconsistent in itself or with the run.

        `steps` is the number of steps per epoch, `records` the number of epochs known to be finished.
        """
        counts = (self.epoch, self.step, self.seeds, self.best_epoch, self.stale, self.plateau_stale)
        is_sound = (
            all(isinstance(count, int) and count >= 0 for count in counts)
            and all(
                isinstance(number, int | float)
                for number in (self.loss_sum, self.best_score or 0.0, self.plateau_scale)
            )
            and all(isinstance(entries, Mapping) for entries in (self.schedule, self.linear, self.shapes))
            and isinstance(self.evaluations, Sequence)
            and all(self._is_evaluation(record, steps) for record in self.evaluations)
            and self.step <= steps
            and (self.epoch == 0 or self.best_epoch <= self.epoch)
            and self._position() in (None, divmod(self.epoch * steps + self.step, steps))
        )
        if not is_sound:
            raise ValueError(
                f"{folder}: epoch {self.epoch}, step {self.step} contradict the rest of the state, "
                "or this run's "
                f"{steps} steps per epoch: it is damaged; use another checkpoint, or train again"
            )
        if records < self.epoch:
            raise ValueError(
                f"{folder}: has {self.epoch} epochs, but metrics.jsonl has {records}: restore the "
                "file, or train again"
            )

    def _is_evaluation(self, record: object, steps: int) -> bool:
        """Return True for a record of an update before this state."""
        match record:
            case {"epoch": int() as epoch, "step": int() as step}:
                return 0 <= step < steps and 0 <= epoch * steps + step < self.updates(steps)
        return False

    def _position(self) -> tuple[object, object] | None:
        """Return epoch and step of the loader's state; None if it has none, unlike khop.Loader's."""
        match self.loader:
            case {"epoch": epoch, "step": step}:
                return epoch, step
        return None


def trainer_state_of(
    saved: Mapping[str, Any], facts: Mapping[str, str], settings: Mapping[str, str], folder: Path
) -> TrainerState:
    """Decode the state in a checkpoint; ValueError if it is not a trainer's, or has other facts or settings.

    `settings` are those of `fixed_settings`.
    """
    expected = {entry.name for entry in fields(TrainerState)}
    # Earlier checkpoints lack these fields.
    optional = {
        "linear",
        "plateau_scale",
        "plateau_stale",
        "shapes",
        "evaluations",
        "settings",
        "is_finished",
    }
    match {"settings": {}, **saved}:
        case {"facts": Mapping() as saved_facts, "settings": Mapping() as before} if (
            saved.keys() | optional == expected
        ):
            check_facts(saved_facts, facts, folder)
            # Checkpoints of earlier versions lack some settings.
            check_facts({name: before.get(name, settings[name]) for name in settings}, settings, folder)
            evaluations = saved.get("evaluations", ())
            found = tuple(evaluations) if isinstance(evaluations, Sequence) else evaluations
            return TrainerState(**{**saved, "settings": settings, "evaluations": found})
    raise ValueError(
        f"{folder}: has the training state {sorted(saved)}, but {sorted(expected)} is expected; "
        "it is not from a khop.Trainer, or from another version of khop"
    )


_CONTENT = "content of "


def content_of(path: str) -> str:
    """Return the name of the fact with the content of a file that a setting names."""
    return f"{_CONTENT}{path}"


def check_facts(saved: Mapping[str, str], facts: Mapping[str, str], folder: Path) -> None:
    """Raise ValueError that names the facts of the run that differ from the checkpoint's, if any."""
    differing = [
        f"{name} was {saved.get(name, 'not set')} and is {facts.get(name, 'not set')}"
        for name in sorted({*saved, *facts})
        if saved.get(name) != facts.get(name)
    ]
    if differing:
        raise ValueError(
            f"{folder}: the run was started with other settings: {'; '.join(differing)}. "
            f"Restore these settings, or start a new run{_way_back(differing)}"
        )


def _way_back(differing: list[str]) -> str:
    """Return the remedy for a run on a graph that has been appended to, and for changed files."""
    files = [one.removeprefix(_CONTENT).split(" was ")[0] for one in differing if one.startswith(_CONTENT)]
    if files:
        return (
            f"; other rows in the file of {', '.join(files)}: put back the file that the run was started with"
        )
    if not any(one.startswith("graph was") for one in differing):
        return ""
    return (
        "; after khop append, earlier snapshots are in GRAPH/snapshots: khop train --resume RUN "
        "--graph GRAPH/snapshots/ID"
    )


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
                f"the weights {name!r} are not finite after the update before {_place(state)}: "
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


_COPIED_BYTES = 1 << 20  # of a buffer


class StepBuffers:
    """Copies of the buffers of a model after its last update, such as statistics of BatchNorm.

    Buffers of more than 1 MiB, such as tables of hard negatives, are not copied.
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
