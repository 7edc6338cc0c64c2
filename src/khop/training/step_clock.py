"""Where a rank's time goes: every moment from one update to the next belongs to a stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from khop.batch import Batch, Span

BESIDE = ("sampling", "gathering")  # in threads beside the training, while it does something else
WITHIN = ("waiting", "moving", "computing", "communicating", "keeping")  # in the thread that trains
STAGES = (*BESIDE, *WITHIN)
LATE = "late"  # how long after the first rank one came to the exchange of gradients


@dataclass(frozen=True)
class TimedStep:
    """One update of one rank: the batch that it was on, and where its time went."""

    batch: Batch
    spans: tuple[Span, ...]  # of its workers, then of the thread that trains, one after the other


def on_its_own() -> None:
    """What a clock waits for where nothing runs behind the thread's back: nothing."""


class StepClock:
    """The spans of a rank's steps.

    Those of the thread that trains leave no gap: each begins where the one before has ended. `settled`
    returns when the device has done what it was given, so that no stage is charged with the one before it.
    """

    def __init__(self, settled: Callable[[], None] = on_its_own) -> None:
        self._settled = settled
        self._spans: list[Span] = []  # of this step
        self._untold: list[Span] = []
        self._lap_began = time.monotonic()

    def start(self) -> None:
        """From now on a batch is waited for; the time before belongs to no step."""
        self._lap_began = time.monotonic()

    def received(self, batch: Batch) -> None:
        """The wait is over; the batch's own spans are of this step too."""
        self._settled()
        moving = next((span for span in batch.spans if span.stage == "moving"), None)
        for span in batch.spans:
            if span.stage in BESIDE:
                self._add(span)
        self.lap("waiting", until=None if moving is None else moving.begun)
        self.lap("moving")

    def lap(self, stage: str, part: str = "", until: float | None = None) -> None:
        """What was since the last lap is `stage`, up to now or to the moment `until`."""
        if until is None:
            self._settled()
        span = Span.since(self._lap_began, stage, part)
        if until is not None:
            span = replace(span, ended=until)
        self._add(span)
        self._lap_began = span.ended

    def untold(self) -> Mapping[str, float]:
        """Seconds by stage since this was last asked."""
        spans, self._untold = self._untold, []
        return seconds_by_stage(spans)

    def finish(self) -> tuple[Span, ...]:
        """The spans of this step, which is over."""
        spans, self._spans = self._spans, []
        return tuple(spans)

    def _add(self, span: Span) -> None:
        self._spans.append(span)
        self._untold.append(span)


def seconds_by_stage(spans: Iterable[Span]) -> dict[str, float]:
    """The sum of each stage of a step."""
    seconds = dict.fromkeys(STAGES, 0.0)
    for span in spans:
        seconds[span.stage] += span.seconds
    return seconds
