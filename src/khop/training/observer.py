"""Who watches the training: a progress bar, a log, a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from khop.training.step_clock import TimedStep


class Observer(Protocol):
    """Told of everything that happens, in the thread that trains."""

    def started(self, epochs: int, steps: int) -> None:
        """Training begins: so many epochs of so many steps."""
        ...

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """One update is done; the loss is the mean over its seeds."""
        ...

    def timed(self, step: TimedStep) -> None:
        """Where this rank's time went in the update that is done."""
        ...

    def evaluating(self, done: int, total: int) -> None:
        """The evaluation has come this far."""
        ...

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """The line that has just been written to metrics.jsonl."""
        ...

    def warned(self, sentence: str) -> None:
        """Something went wrong that the run survives: a checkpoint that the disk did not take."""
        ...


class Unwatched:
    """An observer that does nothing."""

    def started(self, epochs: int, steps: int) -> None:
        """Nothing."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Nothing."""

    def timed(self, step: TimedStep) -> None:
        """Nothing."""

    def evaluating(self, done: int, total: int) -> None:
        """Nothing."""

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Nothing."""

    def warned(self, sentence: str) -> None:
        """Nothing."""


class Several:
    """An observer that tells others what it is told, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def started(self, epochs: int, steps: int) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.started(epochs, steps)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.stepped(epoch, step, loss)

    def timed(self, step: TimedStep) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.timed(step)

    def evaluating(self, done: int, total: int) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.evaluating(done, total)

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.epoch_ended(record)

    def warned(self, sentence: str) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.warned(sentence)
