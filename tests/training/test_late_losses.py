"""Single launches on a device: the host reads a loss some updates later, and nothing changes but that."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import khop
from khop.batch import Batch
from khop.errors import PeerLost
from khop.training import steps
from khop.training.checkpoint import load_checkpoint
from khop.training.step_clock import STAGES, Unwatched
from khop.training.steps import EagerSteps
from khop.training.trainer import Trainer
from support.covered import covered
from support.host_reads import counting
from support.recorded_runs import RecordedRun, as_device, late_losses
from support.recorders import NoStreams, Passed
from support.small_graphs import one_type
from support.small_runs import Interrupting, SmallRun, without_seconds
from support.started_ranks import StartedRanks

CLIPPED = khop.OptimizerSettings(clip_norm=0.05)
OF_THE_HOST = {"training/step_clock.py"}  # reads numbers that the host has


def lines(out: Path) -> list[tuple[int, int, float, int]]:
    found = map(json.loads, (out / "steps.jsonl").read_text().splitlines())
    return [(line["epoch"], line["step"], line["loss"], line["seeds"]) for line in found]


def in_micro_batches(trainer: Trainer) -> Trainer:
    """The trainer with steps of three batches each."""
    graph = one_type()
    trainer.loader = khop.Loader(
        khop.NeighborSampler(khop.Graph(graph.store, graph.features), [2, 2]),
        torch.arange(38),
        8,
        shuffle=True,
        seed=1,
        columns=["x"],
        seed_columns=["y"],
        micro_batches=3,
    )
    return trainer


def fitted(run: SmallRun, change: Callable[[Trainer], Trainer] = lambda trainer: trainer) -> Trainer:
    trainer = change(run.trainer())
    trainer.fit()
    return trainer


def assert_same_run(found: Trainer, wanted: Trainer, out: Path, wanted_out: Path) -> None:
    """Lines, records, checkpoints and weights are equal to the last bit."""
    assert lines(out) == lines(wanted_out)
    assert without_seconds(found._output.records) == without_seconds(wanted._output.records)
    assert found.state == wanted.state
    for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
        assert torch.equal(a, b)
    last, wanted_last = (folder / "checkpoints" / "last" for folder in (out, wanted_out))
    for file in last.glob("*.safetensors"):
        assert file.read_bytes() == (wanted_last / file.name).read_bytes(), file.name


@pytest.mark.long
@pytest.mark.parametrize("change", [lambda trainer: trainer, in_micro_batches], ids=["whole", "micro"])
def test_lines_records_and_weights_have_their_bits(
    tmp_path: Path, change: Callable[[Trainer], Trainer]
) -> None:
    run = SmallRun(tmp_path / "late").with_(optimizer=CLIPPED, epochs=2)
    at_once = replace(run, out=tmp_path / "at-once")
    wanted = fitted(at_once, change)
    with late_losses():
        found = fitted(run, change)
    assert_same_run(found, wanted, run.out, at_once.out)


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = SmallRun(tmp_path / "whole").with_(optimizer=CLIPPED, epochs=2)
    wanted = fitted(whole)
    run = replace(whole, out=tmp_path / "stopped", observer=Interrupting(1, 1))
    with late_losses():
        with pytest.raises(KeyboardInterrupt):
            run.trainer().fit()
        resumed = replace(run, observer=whole.observer).trainer()
        resumed.resume()
        assert (resumed.state.epoch, resumed.state.step) == (1, 4)  # the loss was read two updates later
        resumed.fit()
    assert_same_run(resumed, wanted, run.out, whole.out)


def test_a_measured_run_logs_all_its_losses(tmp_path: Path) -> None:
    for name, block in (("late", late_losses()), ("at-once", nullcontext())):
        with block:
            assert SmallRun(tmp_path / name).trainer().rehearse(7) == 7
    assert len(lines(tmp_path / "late")) == 7
    assert lines(tmp_path / "late") == lines(tmp_path / "at-once")


@dataclass(frozen=True)
class NanAt:
    """A task with a loss of NaN in one step of the first epoch."""

    inner: khop.NodeClassification
    step: int

    @property
    def metric(self) -> str:
        return self.inner.metric

    def losses(self, output: Any, batch: Batch) -> Tensor:  # noqa: ANN401
        losses = self.inner.losses(output, batch)
        return losses * torch.nan if (batch.epoch, batch.step) == (0, self.step) else losses


@pytest.mark.parametrize(("step", "updates"), [(1, 4), (4, 5)])
def test_a_loss_that_is_not_finite_names_its_step_before_a_checkpoint(
    tmp_path: Path, step: int, updates: int
) -> None:
    with late_losses():
        trainer = SmallRun(tmp_path).trainer()
        trainer.task = NanAt(trainer.task, step)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"the loss is nan in epoch 0, step {step}: lower the learning"):
            trainer.fit()
    assert trainer.state.step == updates
    assert [line[1] for line in lines(tmp_path)] == list(range(step))
    assert not (tmp_path / "checkpoints" / "last").exists()


def files_of(found: dict[str, int]) -> set[str]:
    return {read.rpartition(" ")[2].rpartition(":")[0] for read in found}


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU stands for a GPU here")
def test_a_step_reads_no_number_of_the_device(tmp_path: Path) -> None:
    """Neither to compute and clip its gradients nor to update. An earlier loss is on the host.

    Batches are made before: the interpreter does not run in two threads.
    """
    waits: list[object] = []
    fused = khop.OptimizerSettings(options={"fused": True}, clip_norm=0.05)  # fused as on a GPU
    trainer = RecordedRun(tmp_path).with_(epochs=1, optimizer=fused).on_cpu()
    batches = list(trainer.loader.epoch(0))
    with (
        as_device(),
        patch.object(Passed, "synchronize", lambda event: waits.append(event)),
        patch.object(trainer.loader, "epoch", lambda epoch: iter(batches)),
    ):
        trainer._begin("single")
        assert isinstance(trainer._steps, EagerSteps)
        trainer._seconds = dict.fromkeys(STAGES, 0.0)
        steps = trainer._computed()
        for _ in range(3):
            with counting() as found:
                trainer._update(next(steps))
            assert files_of(found) <= OF_THE_HOST, found
        known = trainer.state.loss_sum
        assert len(list(steps)) == 1
        steps.close()
    assert known > 0  # the loss of the first step was read, after the third update
    assert waits == []


@dataclass
class Seen(Unwatched):
    """The losses that an observer was given."""

    losses: list[float] = field(default_factory=list)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.losses.append(loss)


@covered
def _train_on_rank(rank: int, device: str, out: Path) -> None:
    """Train on two ranks with losses that are read late, and with losses that are read at once."""
    for name, block in (("late", late_losses()), ("at-once", nullcontext())):
        with block:
            run = SmallRun(out / name, observer=Seen()).with_(optimizer=CLIPPED, epochs=1)
            trainer = fitted(run)
        weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        assert isinstance(run.observer, Seen)
        torch.save((weights, run.observer.losses), out / f"{name}-{rank}.pt")


COLLECTIVES = ("all_gather", "all_reduce", "all_to_all_single", "broadcast", "barrier")


@contextmanager
def collectives() -> Iterator[list[str]]:
    """The collectives that khop starts in the block, by name and file."""
    found: list[str] = []

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def started(*arguments: object, **options: object) -> object:
            files = [frame.filename for frame in traceback.extract_stack() if "/khop/" in frame.filename]
            others = [file for file in files if not file.endswith("processes/group.py")]
            found.append(f"{name} {Path(others[-1]).name}")
            return call(*arguments, **options)

        return started

    with ExitStack() as patches:
        for name in COLLECTIVES:
            of_torch = getattr(torch.distributed, name)
            patches.enter_context(patch.object(torch.distributed, name, noted(name, of_torch)))
        yield found


class CopyingStreams(NoStreams):
    """Streams that count the copies to the device."""

    def __init__(self) -> None:
        self.copies = 0

    def copied(self, tensor: Tensor) -> Tensor:
        self.copies += 1
        return super().copied(tensor)


@covered
def _count_on_rank(rank: int, device: str, out: Path) -> None:
    """Count the collectives of a step: those of gradients, and one of the numbers that devices have."""
    streams = CopyingStreams()
    with patch.object(steps, "streams_of", lambda device: streams):
        trainer = SmallRun(out).with_(epochs=1).trainer()
        trainer._begin("single")
        trainer._seconds = dict.fromkeys(STAGES, 0.0)
        computed = trainer._computed()
        for number in range(4):
            with collectives() as found:
                trainer._update(next(computed))
            others = [each for each in found if each != "all_reduce gradients.py"]
            agreed = [] if number else ["all_gather trainer.py"] * 2  # names of counts, in the first step
            assert others == [*agreed, "all_gather run_output.py"]
            assert streams.copies == number + 1
        computed.close()


def test_a_step_of_ranks_with_devices_has_no_collective_of_the_host(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    ranks.launch(_count_on_rank, 2, (tmp_path,))


@covered
def _count_recorded_on_rank(rank: int, device: str, out: Path) -> None:
    """Count the collectives of a recorded step."""
    with as_device():
        trainer = RecordedRun(out).with_(epochs=1).trainer()
        trainer._begin("recorded")
        trainer._seconds = dict.fromkeys(STAGES, 0.0)
        computed = trainer._computed()
        for number in range(3):
            with collectives() as found:
                trainer._update(next(computed))
            others = [each for each in found if each != "all_reduce gradients.py"]
            agreed = [] if number else ["all_gather trainer.py"] * 2  # names of counts, in the first step
            assert others == [*agreed, "all_gather run_output.py"]
        computed.close()


@pytest.mark.long
def test_a_recorded_step_of_ranks_has_no_collective_of_the_host(tmp_path: Path, ranks: StartedRanks) -> None:
    ranks.launch(_count_recorded_on_rank, 2, (tmp_path,))


@covered
def _stop_on_rank(rank: int, device: str, out: Path) -> None:
    """Stop one of two ranks; both end after the same update, and rank 0 saves it."""
    observer = Interrupting(0, 1) if rank == 1 else Unwatched()
    with late_losses():
        trainer = SmallRun(out, observer=observer).trainer()
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
    (out / f"{rank}").write_text(f"{trainer.state.epoch} {trainer.state.step}")


def test_ranks_with_devices_end_after_the_same_update(tmp_path: Path, ranks: StartedRanks) -> None:
    ranks.launch(_stop_on_rank, 2, (tmp_path,))
    first, second = ((tmp_path / str(rank)).read_text() for rank in range(2))
    training = load_checkpoint(tmp_path / "checkpoints" / "last").training
    assert first == second == f"{training['epoch']} {training['step']}"
    assert training["seeds"] > 0


@covered
def _lose_on_rank(rank: int, device: str, out: Path, is_late: bool) -> None:
    """Lose a rank after a checkpoint."""

    class Leaving(Unwatched):
        def stepped(self, epoch: int, step: int, loss: float) -> None:
            if (rank, epoch, step) == (1, 1, 0):
                os._exit(1)

    policy = khop.CheckpointPolicy(minutes=None)
    with late_losses() if is_late else nullcontext():
        SmallRun(out, observer=Leaving()).with_(checkpoints=policy).trainer().fit()


@pytest.mark.long
@pytest.mark.parametrize("is_late", [True, False], ids=["device", "host"])
def test_a_lost_rank_leaves_the_last_checkpoint_where_devices_have_exchanged(
    tmp_path: Path, is_late: bool
) -> None:
    with pytest.raises(PeerLost, match="rank 1"):
        khop.launch(_lose_on_rank, procs=2, device="cpu", arguments=(tmp_path, is_late), deadline=20)
    training = load_checkpoint(tmp_path / "checkpoints" / "last").training
    assert training["epoch"] == 1
    assert (training["step"] == 0) == is_late


def test_ranks_have_the_bits_of_losses_read_at_once(tmp_path: Path, ranks: StartedRanks) -> None:
    ranks.launch(_train_on_rank, 2, (tmp_path,))
    assert lines(tmp_path / "late") == lines(tmp_path / "at-once")
    assert len(lines(tmp_path / "late")) == 5
    for rank in range(2):
        late, at_once = (torch.load(tmp_path / f"{name}-{rank}.pt") for name in ("late", "at-once"))
        assert late[1] == at_once[1] == [line[2] for line in lines(tmp_path / "late")]
        for a, b in zip(late[0], at_once[0], strict=True):
            assert torch.equal(a, b)
