"""Time measurement of a rank: every moment between two updates belongs to a stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from khop.batch import Batch, Span

BESIDE = ("sampling", "gathering")  # in other threads, in parallel to training
WITHIN = ("waiting", "moving", "computing", "communicating", "saving")  # in the thread that trains
STAGES = (*BESIDE, *WITHIN)
LATE = "late"  # delay of a rank behind the first one at the gradient exchange


@dataclass(frozen=True)
class TimedStep:
    """One update of one rank: its batch, and its time by stage."""

    batch: Batch
    spans: tuple[Span, ...]  # spans of the workers, then of the training thread in order


def on_its_own() -> None:
    """Wait for nothing: the default of clocks without a device that runs asynchronously."""


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
        """Start waiting for a batch; the time before belongs to no step."""
        self._lap_began = time.monotonic()

    def received(self, batch: Batch) -> None:
        """End the wait; the batch's own spans belong to this step too."""
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
