"""Time of a rank by stage, the values of a step that ranks exchange, and observers of a run.

Every moment between two optimizer steps belongs to one stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from khop.arguments import instance_of
from khop.batch import Batch, Span
from khop.training import traffic

BESIDE = ("sampling", "gathering")  # in other threads, in parallel to training
WITHIN = ("waiting", "moving", "computing", "communicating", "saving")  # in the thread that trains
STAGES = (*BESIDE, *WITHIN)
LATE = "late"  # delay of a rank after the first rank at the gradient exchange


@dataclass(frozen=True)
class TimedStep:
    """One update of one rank: its batch, and its time by stage."""

    batch: Batch
    spans: tuple[Span, ...]  # spans of the workers, then of the training thread in order


def on_its_own() -> None:
    """Do not wait: the default of clocks without an asynchronous device."""


class StepClock:
    """Recorder of the time spans of a rank's steps.

    The spans of the training thread have no gaps: each begins at the end of the previous one. `settled`
    returns when the device has finished its work, so that no stage includes time of the previous one.
    """

    def __init__(self, settled: Callable[[], None] = on_its_own) -> None:
        self._settled = settled
        self._spans: list[Span] = []  # spans of this step
        self._unreported: list[Span] = []
        self._lap_began = time.monotonic()

    def start(self) -> None:
        """Start waiting for a batch; earlier time is not part of a step."""
        self._lap_began = time.monotonic()

    def received(self, batch: Batch) -> None:
        """End the wait; the batch's spans are part of this step."""
        self._settled()
        moving = next((span for span in batch.spans if span.stage == "moving"), None)
        for span in batch.spans:
            if span.stage in BESIDE:
                self._add(span)
        self.lap("waiting", until=None if moving is None else moving.begun)
        self.lap("moving")

    def lap(self, stage: str, part: str = "", until: float | None = None) -> None:
        """Assign the time since the last lap to `stage`, up to now or to the moment `until`."""
        if until is None:
            self._settled()
        span = Span.since(self._lap_began, stage, part)
        if until is not None:
            span = replace(span, ended=until)
        self._add(span)
        self._lap_began = span.ended

    def unreported(self) -> Mapping[str, float]:
        """Return the seconds by stage since the last call."""
        spans, self._unreported = self._unreported, []
        return seconds_by_stage(spans)

    def finish(self) -> tuple[Span, ...]:
        """End the step and return its spans."""
        spans, self._spans = self._spans, []
        return tuple(spans)

    def _add(self, span: Span) -> None:
        self._spans.append(span)
        self._unreported.append(span)


def seconds_by_stage(spans: Iterable[Span]) -> dict[str, float]:
    """Sum the seconds of each stage of a step."""
    seconds = dict.fromkeys(STAGES, 0.0)
    for span in spans:
        seconds[span.stage] += span.seconds
    return seconds


@dataclass(frozen=True)
class RankStep:
    """Values of one rank."""

    loss_sum: float  # 0 if it is on a device
    seeds: int
    signal_number: int  # of the signal that the rank has recorded, or 0
    ready_at: float  # moment at which its gradients were ready, by the clock of rank 0
    wants_checkpoint: bool = False

    def values(self, seconds: Mapping[str, float], counts: Mapping[str, float]) -> Tensor:
        """Return the values with the seconds by stage and the counts of a batch's traffic, float64."""
        own = [self.loss_sum, self.seeds, self.signal_number, self.ready_at, self.wants_checkpoint]
        return torch.tensor([*own, *seconds.values(), *traffic.values_of(counts)], dtype=torch.float64)


_FIELDS = 5  # of RankStep


@dataclass(frozen=True)
class GatheredStep:
    """Values of all ranks, equal on all of them."""

    values: Tensor  # float64 (ranks, 5 + stages + counts): the fields of RankStep, seconds, counts
    counts: Mapping[str, float]  # traffic of this rank's batch; all ranks count the same names

    def with_first(self, values: Tensor) -> GatheredStep:
        """Return the same step with other values of the ranks: float64 (ranks, n), its first n columns."""
        known = self.values.expand(values.shape[0], -1).clone()
        known[:, : values.shape[1]] = values
        return replace(self, values=known)

    @property
    def loss_sum(self) -> float:
        """Sum of the losses over all ranks."""
        return float(self.values[:, 0].sum())

    @property
    def seeds(self) -> int:
        """Number of losses over all ranks."""
        return int(self.values[:, 1].sum())

    @property
    def signal_number(self) -> int:
        """Number of the signal that a rank has recorded, or 0."""
        return int(self.values[:, 2].max())

    @property
    def wants_checkpoint(self) -> bool:
        """True if a rank wants a checkpoint."""
        return bool(self.values[:, 4].any())

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Seconds of each rank by stage, and its delay after the first rank at the gradient exchange."""
        columns = (
            self.values[:, 3] - self.values[:, 3].min(),
            *self.values[:, _FIELDS : _FIELDS + len(STAGES)].T,
        )
        return {
            name: [round(s, 6) for s in of_ranks.tolist()]
            for name, of_ranks in zip((LATE, *STAGES), columns, strict=True)
        }

    @property
    def traffic(self) -> dict[str, list[float]]:
        """Counts of each rank by name."""
        return traffic.of_ranks(self.counts, self.values[:, _FIELDS + len(STAGES) :])


@runtime_checkable
class Observer(Protocol):
    """Receives every event of a training run, in the thread that trains.

    An observer has all methods; a subclass of `Unwatched` overrides only those that it needs.

    Example:
        >>> class Losses(khop.Unwatched):
        ...     def stepped(self, epoch, step, loss):
        ...         print(f"epoch {epoch}, step {step}: {loss:.3f}")
        >>> isinstance(Losses(), khop.Observer)
        True
    """

    def started(self, epochs: int, steps: int) -> None:
        """Handle the start of training.

        Args:
            epochs: Number of epochs.
            steps: Steps per epoch.
        """
        return

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Handle the end of an update.

        Args:
            epoch: Epoch, from 0.
            step: Step within the epoch, from 0.
            loss: Mean loss over the seeds of the update.
        """
        return

    def timed(self, step: TimedStep) -> None:
        """Handle the time spans of this rank in the update that has ended.

        Args:
            step: Batch and spans of the update.
        """
        return

    def evaluating(self, done: int, total: int) -> None:
        """Handle progress of the evaluation.

        Args:
            done: Work done so far.
            total: Total work, in the same unit.
        """
        return

    def evaluated(self, record: Mapping[str, object]) -> None:
        """Handle the end of an evaluation within an epoch.

        Args:
            record: The line just written to steps.jsonl.
        """
        return

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Handle the end of an epoch.

        Args:
            record: The line just written to metrics.jsonl.
        """
        return

    def warned(self, sentence: str) -> None:
        """Handle a problem that does not end the run, such as a checkpoint that could not be written.

        Args:
            sentence: Description of the problem.
        """
        return


class Unwatched(Observer):
    """An observer that does nothing; the base of observers that handle some events.

    Example:
        >>> class Warnings(khop.Unwatched):
        ...     def warned(self, sentence):
        ...         print(sentence)
        >>> Warnings().started(epochs=3, steps=10)
    """

    def __init__(self) -> None: ...


class Several:
    """An observer that forwards every event to other observers, in order.

    Args:
        observers: The other observers.
    Raises:
        ValueError: An argument is not an observer.
    Example:
        >>> class Epochs(khop.Unwatched):
        ...     def epoch_ended(self, record):
        ...         print(record)
        >>> khop.Several(Epochs(), Epochs()).epoch_ended({"epoch": 0})
        {'epoch': 0}
        {'epoch': 0}
    """

    def __init__(self, *observers: Observer) -> None:
        remedy = "must be observers, such as instances of subclasses of khop.Unwatched"
        for observer in observers:
            instance_of("observers", observer, Observer, remedy)
        self.observers = observers

    def started(self, epochs: int, steps: int) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.started(epochs, steps)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.stepped(epoch, step, loss)

    def timed(self, step: TimedStep) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.timed(step)

    def evaluating(self, done: int, total: int) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.evaluating(done, total)

    def evaluated(self, record: Mapping[str, object]) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.evaluated(record)

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.epoch_ended(record)

    def warned(self, sentence: str) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.warned(sentence)
