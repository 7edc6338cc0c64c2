"""Observers of a training run, such as a progress bar, a log or a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from khop.arguments import instance_of
from khop.training.step_clock import TimedStep


@runtime_checkable
class Observer(Protocol):
    """Receives every event of a training run, in the thread that trains."""

    def started(self, epochs: int, steps: int) -> None:
        """Handle the start of training: `epochs` epochs of `steps` steps each."""
        ...

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Handle the end of an update; the loss is the mean over its seeds."""
        ...

    def timed(self, step: TimedStep) -> None:
        """Handle the time spans of this rank in the update that has ended."""
        ...

    def evaluating(self, done: int, total: int) -> None:
        """Handle progress of the evaluation."""
        ...

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Handle the end of an epoch; `record` is the line just written to metrics.jsonl."""
        ...

    def warned(self, sentence: str) -> None:
        """Handle a problem that does not end the run, such as a checkpoint that could not be written."""
        ...


class Unwatched:
    """An observer that does nothing."""

    def started(self, epochs: int, steps: int) -> None:
        """Do nothing."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Do nothing."""

    def timed(self, step: TimedStep) -> None:
        """Do nothing."""

    def evaluating(self, done: int, total: int) -> None:
        """Do nothing."""

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Do nothing."""

    def warned(self, sentence: str) -> None:
        """Do nothing."""


class Several:
    """An observer that forwards every event to other observers, in order."""

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

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.epoch_ended(record)

    def warned(self, sentence: str) -> None:
        """Forward the event."""
        for observer in self.observers:
            observer.warned(sentence)
