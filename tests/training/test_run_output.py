"""The folder of a run: what is saved is read again, and a run that is there is not written over.

Logs and checkpoints of a run: when one is due, and what a full disk leaves for later.

Lines of updates: at once where the loss is known, else once the device has passed it, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from khop.distributed.processes.group import ALONE, Group
from khop.training.checkpoint import Snapshot
from khop.training.optimizer_settings import ModelOptimizer
from khop.training.run_output import BEST, LAST, CheckpointWriter, DeviceLoss, RunOutput, StepLog
from khop.training.settings import CheckpointPolicy
from khop.training.step_clock import STAGES, GatheredStep, RankStep, Unwatched
from khop.training.trainer_state import TrainerState
from support.recorders import NoStreams


def output_of(folder: Path, rank: int = 0) -> RunOutput:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = ModelOptimizer(model, 0.01, 0.0)
    return RunOutput(folder, CheckpointPolicy(), model, optimizer, Group(rank), print)


def test_records_and_state_are_read_as_they_were_saved(tmp_path: Path) -> None:
    output = output_of(tmp_path)
    output.begin(0, 2)
    output.end_epoch({"epoch": 0, "loss": 0.5})
    output.save(TrainerState(epoch=1), BEST, LAST)
    output.close()
    assert sorted(path.name for path in output.folder.iterdir()) == [BEST, LAST]
    checkpoint, records = output_of(tmp_path).read()
    assert (checkpoint.folder, checkpoint.training["epoch"]) == (output.folder / LAST, 1)
    assert records == output.records == [{"epoch": 0, "loss": 0.5}]


def test_a_run_that_is_there_is_written_on_only_where_it_is_resumed(tmp_path: Path) -> None:
    first = output_of(tmp_path)
    first.begin(0, 2)
    first.end_epoch({"epoch": 0, "loss": 0.5})
    first.save(TrainerState(epoch=1), LAST)
    first.close()
    again = output_of(tmp_path)
    with pytest.raises(ValueError, match="there is a run in it already; resume it, or choose another folder"):
        again.begin(2, 2)
    checkpoint, again.records = again.read()
    again.source = checkpoint.folder
    again.begin(2, 2)
    again.close()


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    output = output_of(tmp_path, rank=1)
    output.begin(0, 2)
    output.end_epoch({"epoch": 0, "loss": 0.5})
    output.save(TrainerState(epoch=1), LAST)
    output.close()
    assert not output.is_due()
    assert list(tmp_path.iterdir()) == []


SNAPSHOT = Snapshot({"w": torch.ones(2)}, {}, [{"params": ["w"]}], {"epoch": 1}, [])


def test_a_checkpoint_is_due_after_its_steps(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(steps=2, minutes=None), print)
    writer.begin([], 0, 5, None)
    due = []
    for step in range(2):
        due.append(writer.is_due())
        writer.log_step({"step": step})
    assert [*due, writer.is_due()] == [False, False, True]
    writer.save({LAST: SNAPSHOT})
    writer.close()
    assert not writer.is_due()
    assert (tmp_path / "steps.jsonl").read_text().count("\n") == 2
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def test_what_a_disk_does_not_take_is_written_with_the_next_checkpoint(tmp_path: Path) -> None:
    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([], 0, 5, None)
    (tmp_path / "checkpoints").write_text("a file where the folder has to be")
    writer.save({LAST: SNAPSHOT})
    writer.save({})
    assert len(warned) == 1
    assert warned[0].endswith("; the run continues")
    with pytest.raises(OSError, match="checkpoints"):
        writer.close()
    (tmp_path / "checkpoints").unlink()
    writer.close()
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def test_lost_lines_are_restored_and_reported(tmp_path: Path) -> None:
    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([{"epoch": 0, "loss": 1.0}], 3, 3, None)
    assert '"loss": 1.0' in (tmp_path / "metrics.jsonl").read_text()
    assert [line.split(":")[0] for line in warned] == [
        str(tmp_path / f"{n}.jsonl") for n in ("metrics", "steps")
    ]


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
