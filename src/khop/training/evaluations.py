"""Evaluations of a training run: their schedule, the best one, and early stopping."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from torch import nn

from khop.arguments import mapping_of, shown
from khop.distributed.processes.group import Group, this_group
from khop.training.metrics import LOOK_FOR_NAN, is_better
from khop.training.run_log import Record
from khop.training.run_output import BEST
from khop.training.settings import TrainerSettings
from khop.training.tasks import score_name
from khop.training.trainer_state import TrainerState, evaluation_of

CHOSEN_BY = "val"  # split whose score selects the best state
_LARGEST_DENOMINATOR = 10**7  # `evaluate_every=500 / steps` is exact for epochs with at most as many steps
_ROUNDING = 1e-3  # relative difference between scores of the same weights on different ranks


@dataclass(frozen=True)
class EvaluationPlan:
    """The updates of a run after which its model is evaluated, in integer arithmetic."""

    steps: int  # per epoch
    last: int  # last update of the run, unless a score ends it earlier
    every: Fraction  # updates between evaluations

    @classmethod
    def of(cls, settings: TrainerSettings, steps: int) -> EvaluationPlan:
        """Make the plan of a run with `steps` steps per epoch."""
        last = settings.epochs * steps
        every = Fraction(settings.evaluate_every).limit_denominator(_LARGEST_DENOMINATOR)
        every = max(every, Fraction(1, _LARGEST_DENOMINATOR))  # else a smaller number is 0
        return cls(steps, min(last, settings.max_steps or last), steps * every)

    @property
    def epochs(self) -> int:
        """Number of epochs, including one that ends early."""
        return -(-self.last // self.steps)

    def num_epochs(self, state: TrainerState) -> float:
        """Return the number of epochs so far, for records."""
        return round(state.updates(self.steps) / self.steps, 6)

    def is_due(self, state: TrainerState) -> bool:
        """Return True if the model is evaluated in this state, after its last update."""
        updates, every = state.updates(self.steps), self.every
        before = (updates - 1) * every.denominator // every.numerator
        return updates * every.denominator // every.numerator > before or updates >= self.last

    def is_over(self, state: TrainerState, settings: TrainerSettings, scores: Mapping[str, object]) -> bool:
        """Return True if training ends in this state; `scores` are those of its evaluation, if any.

        Within an epoch, it only ends after an evaluation.
        """
        if not state.is_evaluated:
            return False
        is_stale = settings.patience is not None and state.stale >= settings.patience
        return is_stale or self.is_finished(state, settings, scores)

    def is_finished(
        self, state: TrainerState, settings: TrainerSettings, scores: Mapping[str, object]
    ) -> bool:
        """Return True if training ends by its number of updates, or by its target."""
        return state.updates(self.steps) >= self.last or _reaches(settings.target, scores)


def _reaches(target: tuple[str, float] | None, scores: Mapping[str, object]) -> bool:
    """Return True if the target's score is reached."""
    if target is None:
        return False
    metric, value = target
    score = scores.get(_of_target(target))
    return isinstance(score, int | float) and not is_better(metric, value, score)


def _of_target(target: tuple[str, float]) -> str:
    """Return the name of the target's score in records."""
    return score_name(f"{CHOSEN_BY}/{target[0]}", target[0])


def named_scores(
    evaluate: Callable[[], Mapping[str, float]],
    model: nn.Module,
    metric: str,
    state: TrainerState,
    settings: TrainerSettings,
    checkpoint: Path,
) -> dict[str, float]:
    """Evaluate the model; return its scores by their names in records. Collective."""
    group = this_group()
    group.meet("evaluating")
    with (
        group.exchanging("evaluating", state.epoch, state.step),
        evaluation_of(model, state, checkpoint),
    ):
        scores = _scores_of_ranks(group, evaluate())
    if CHOSEN_BY not in scores:
        raise ValueError(
            f"evaluate() returned scores of {sorted(scores)}: {CHOSEN_BY!r} is required to select the best "
            "checkpoint"
        )
    named = {score_name(name, metric): score for name, score in scores.items()}
    if settings.target is not None and _of_target(settings.target) not in named:
        raise ValueError(
            f"target {settings.target}: the evaluation does not compute {_of_target(settings.target)}, only "
            f"{', '.join(named)}; give the metric of one of these"
        )
    return named


def _scores_of_ranks(group: Group, scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of rank 0, which are finite numbers. Collective.

    ValueError on every rank if those of another rank differ by more than rounding. Even with rounding alone,
    ranks that went by their own scores could choose another learning rate, or end in another epoch.
    """
    named = mapping_of("evaluate() returned", scores, 'names to scores, such as {"val": 0.7}')
    numbers = {name: _number(name, score) for name, score in named.items()}
    content = json.dumps(numbers).encode()
    of_ranks = group.gather_bytes(content) if group.world_size > 1 else [content]
    first, *others = (json.loads(each) for each in of_ranks)
    for name, score in [entry for found in (first, *others) for entry in found.items()]:
        if not math.isfinite(score):
            raise ValueError(
                f"evaluate() returned the score {name!r} {score}: must be finite; leave it out if it is "
                f"undefined, else {LOOK_FOR_NAN}"
            )
    for rank, found in enumerate(others, 1):
        differing = [
            f"{name!r} {first.get(name, 'missing')} on rank 0, {found.get(name, 'missing')} on rank {rank}"
            for name in sorted({*first, *found})
            if not (
                name in first and name in found and math.isclose(first[name], found[name], rel_tol=_ROUNDING)
            )
        ]
        if differing:
            raise ValueError(
                f"evaluate() returned different scores on the ranks: {'; '.join(differing)}. Every rank must "
                "return the same scores, as khop.evaluate does: in a custom evaluation, give every rank all "
                'seeds, by khop.Loader(..., ranks="this"), or sum over the ranks'
            )
    return dict(first)


def _number(name: str, score: object) -> float:
    """Return a score as a number, also one of a tensor or an array without dimensions."""
    value = score.item() if hasattr(score, "item") and getattr(score, "ndim", None) == 0 else score
    if not isinstance(value, int | float):
        raise ValueError(
            f"evaluate() returned the score {name!r} {shown(score)}: must be a number, or a tensor or an "
            "array without dimensions"
        )
    return float(value)


def best_name(metric: str, earlier: Iterable[Record], last: Record, kept: int) -> list[str]:
    """Return the name of the last evaluation among the `kept` best checkpoints; [] if it is not among them.

    The names are best, best-1, ...; records without a score on `val` are not evaluations.
    """
    name = score_name(CHOSEN_BY, metric)
    score = last.get(name)
    if not isinstance(score, int | float):
        return []
    others = [number for record in earlier if isinstance(number := record.get(name), int | float)]
    place = sum(not is_better(metric, score, each) for each in others)
    return [f"{BEST}-{place}" if place else BEST][: int(place < kept)]


def best_record(records: Iterable[Record], state: TrainerState, metric: str) -> Record:
    """Return the record of the best evaluation: of a step, or of an epoch."""
    name = score_name(CHOSEN_BY, metric)
    found = (one for one in (*state.evaluations, *records) if one["epoch"] == state.best_epoch)
    return next(one for one in found if one.get(name) == state.best_score)
