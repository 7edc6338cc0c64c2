"""Lines of updates: at once where the loss is known, else once the device has passed it, in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from khop.runtime.group import ALONE
from khop.training.gathered_step import GatheredStep, RankStep
from khop.training.observer import Unwatched
from khop.training.step_clock import STAGES
from khop.training.step_log import DeviceLoss, StepLog
from khop.training.trainer_state import TrainerState
from support.recorders import NoStreams


@dataclass
class Lines(Unwatched):
    """The updates that an observer is told of."""

    seen: list[tuple[int, int, float]] = field(default_factory=list)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.seen.append((epoch, step, loss))


def gathered(loss_sum: float, seeds: int) -> GatheredStep:
    return RankStep(loss_sum, seeds, 0, 0.0).gathered(ALONE, dict.fromkeys(STAGES, 0.0), {})


def test_a_known_loss_is_logged_at_once() -> None:
    lines = Lines()
    log = StepLog(None, lines, Path("last"))
    state = log.add(TrainerState(step=1), gathered(6.0, 3))
    assert lines.seen == [(0, 0, 2.0)]
    assert state.loss_sum == 6.0


def test_losses_of_a_device_are_logged_behind_and_when_all_are_wanted() -> None:
    lines, shared = Lines(), torch.zeros((), dtype=torch.float64)
    log = StepLog(None, lines, Path("last"))
    loss, state = DeviceLoss(shared, NoStreams(), behind=2), TrainerState()
    for step in range(4):
        shared.fill_(10.0 * (step + 1))  # the memory of a step's loss is that of the next one's
        state = log.add(replace(state, step=step + 1), gathered(0.0, 10), loss)
    assert lines.seen == [(0, 0, 1.0), (0, 1, 2.0)]
    assert state.loss_sum == 30.0
    state = log.settled(state)
    assert lines.seen[2:] == [(0, 2, 3.0), (0, 3, 4.0)]
    assert state.loss_sum == 100.0
    assert log.settled(state) == state


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    log = StepLog(None, Lines(), Path("last"))
    loss = DeviceLoss(torch.tensor(torch.nan, dtype=torch.float64), NoStreams(), behind=1)
    state = log.add(TrainerState(epoch=2, step=5), gathered(0.0, 1), loss)
    with pytest.raises(ValueError, match="loss is nan in epoch 2, step 4"):
        log.settled(state)


@pytest.mark.parametrize("where", ["host", "device"])
def test_an_observer_that_raises_does_not_lose_the_loss_it_was_given(where: str) -> None:
    class Stopping(Unwatched):
        def stepped(self, epoch: int, step: int, loss: float) -> None:
            raise KeyboardInterrupt

    log = StepLog(None, Stopping(), Path("last"))
    shared = torch.tensor(6.0, dtype=torch.float64)
    loss = DeviceLoss(shared, NoStreams(), behind=0) if where == "device" else None
    ended = TrainerState(step=1)
    with pytest.raises(KeyboardInterrupt):
        log.add(ended, gathered(6.0, 3), loss)
    assert log.settled(ended).loss_sum == 6.0
