"""A step's time is told without gaps: what one stage ends, the next begins.

The values of an update that all ranks share: sums, the strongest signal, and each rank's times.

Several observers get every event, in their order.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import replace

import pytest
import torch

from khop.batch import Batch, Sample, Span
from khop.training.step_clock import (
    LATE,
    STAGES,
    GatheredStep,
    Observer,
    RankStep,
    Several,
    StepClock,
    Unwatched,
    seconds_by_stage,
)

BATCH = Batch(Sample({}, (), {}), {}, {}, {}, 0, 0, 0)


def test_laps_follow_one_another_without_a_gap() -> None:
    begun = time.monotonic()
    clock = StepClock()
    clock.received(BATCH)
    clock.lap("computing", "forward")
    clock.lap("communicating")
    spans = clock.finish()
    assert [span.stage for span in spans] == ["waiting", "moving", "computing", "communicating"]
    assert [span.ended for span in spans[:-1]] == [span.begun for span in spans[1:]]
    assert begun <= spans[0].begun <= spans[-1].ended <= time.monotonic()
    assert {span.thread for span in spans} == {"MainThread"}
    assert clock.finish() == ()


def test_a_batch_brings_the_time_of_its_workers_and_moving_is_no_waiting() -> None:
    clock = StepClock()
    now = time.monotonic()
    made = (Span("sampling", now - 3, now - 1, "w"), Span("gathering", now - 1, now, "w"))
    received = (Span("waiting", now, now + 1, "MainThread"), Span("moving", now + 1, now + 3, "MainThread"))
    clock.received(replace(BATCH, spans=(*made, *received)))
    sampling, gathering, waiting, moving = clock.finish()
    assert (sampling, gathering) == made
    assert (waiting.stage, moving.stage) == ("waiting", "moving")
    assert waiting.ended == moving.begun == now + 1


def test_a_lap_can_end_before_now() -> None:
    clock = StepClock()
    middle = time.monotonic()
    time.sleep(0.002)
    clock.lap("computing", until=middle)
    clock.lap("communicating")
    computing, communicating = clock.finish()
    assert computing.ended == communicating.begun == middle
    assert communicating.seconds >= 0.002


def test_time_after_a_report_counts_for_the_next_step() -> None:
    clock = StepClock()
    clock.received(BATCH)
    clock.unreported()
    time.sleep(0.002)
    clock.lap("computing", "update")
    spans = clock.finish()
    clock.start()
    clock.received(BATCH)
    told = clock.unreported()
    assert tuple(told) == STAGES
    assert told["computing"] == spans[-1].seconds >= 0.002


def test_time_between_two_steps_that_belongs_to_none_is_left_out() -> None:
    clock = StepClock()
    time.sleep(0.01)
    begun = time.monotonic()
    clock.start()
    clock.received(BATCH)
    assert seconds_by_stage(clock.finish())["waiting"] <= time.monotonic() - begun


def test_the_device_is_waited_for_before_a_stage_ends() -> None:
    settled: list[float] = []
    clock = StepClock(lambda: settled.append(time.monotonic()))
    clock.received(BATCH)
    clock.lap("computing")
    *_, computing = clock.finish()
    assert computing.begun <= settled[-1] <= computing.ended


def test_an_unknown_stage_is_an_error() -> None:
    with pytest.raises(KeyError, match="dreaming"):
        seconds_by_stage([Span("dreaming", 0.0, 1.0, "w")])


def test_one_rank_gets_back_its_own_values() -> None:
    seconds = {stage: float(number) for number, stage in enumerate(STAGES)}
    counts = {"rows": 3, "bytes": 24}
    values = RankStep(6.5, 4, 15, 2.5, wants_checkpoint=True).values(seconds, counts)
    step = GatheredStep(values[None], counts)
    assert (step.loss_sum, step.seeds, step.signal_number, step.wants_checkpoint) == (6.5, 4, 15, True)
    assert step.seconds == {LATE: [0.0], **{stage: [float(number)] for number, stage in enumerate(STAGES)}}
    assert step.traffic == {"bytes": [24], "rows": [3]}


def test_losses_and_seeds_are_sums_and_delays_count_from_the_first_rank() -> None:
    stages = [0.0] * len(STAGES)
    rows = [[1.5, 2, 0, 10.25, 0, *stages, 5], [2.0, 3, 2, 10.0, 1, *stages, 7]]
    step = GatheredStep(torch.tensor(rows, dtype=torch.float64), {"rows": 5})
    assert (step.loss_sum, step.seeds, step.signal_number, step.wants_checkpoint) == (3.5, 5, 2, True)
    assert step.seconds[LATE] == [0.25, 0.0]
    assert step.traffic == {"rows": [5, 7]}


EVENTS = [name for name, of in vars(Observer).items() if inspect.isfunction(of) and not name.startswith("_")]


class Noting:
    """An observer that notes every event."""

    def __init__(self, name: str, notes: list[tuple[object, ...]]) -> None:
        self.name, self.notes = name, notes

    def __getattr__(self, event: str) -> object:
        return lambda *values: self.notes.append((self.name, event, *values))


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_is_forwarded_in_order(event: str) -> None:
    notes: list[tuple[object, ...]] = []
    several = Several(Noting("first", notes), Unwatched(), Noting("second", notes))  # type: ignore[arg-type]
    values = range(len(inspect.signature(getattr(Observer, event)).parameters) - 1)
    getattr(several, event)(*values)
    assert notes == [("first", event, *values), ("second", event, *values)]
