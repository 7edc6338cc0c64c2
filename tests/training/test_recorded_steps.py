"""A trainer with recorded steps takes the course of one without, also over overflows, stops and ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import khop
from khop.api import loader as loaders
from khop.graph.features.table import FeatureTable
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.loading.local_source import LocalSource
from khop.models.node_embedding import NodeEmbedding
from khop.training.chosen_steps import why_not_recorded
from khop.training.recorded_steps import CapturedSteps, Exceeded, RecordedSteps
from khop.training.step_clock import STAGES, Unwatched
from khop.training.trainer import Trainer
from support.covered import covered
from support.host_reads import counting
from support.recorded_runs import RecordedRun, as_device, too_small
from support.recorders import Passed, TimedStreams
from support.small_runs import Interrupting
from support.started_ranks import StartedRanks

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu trains on a GPU")


def losses(folder: Path) -> dict[tuple[int, int], float]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return {(r["epoch"], r["step"]): r["loss"] for r in map(json.loads, lines)}


def weights(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def fitted(run: RecordedRun) -> Trainer:
    with as_device():
        trainer = run.trainer()
        trainer.fit()
    return trainer


def fitted_on_cpu(run: RecordedRun) -> Trainer:
    trainer = run.on_cpu()
    trainer.fit()
    return trainer


@dataclass
class Lines(Unwatched):
    """An observer that keeps warnings."""

    lines: list[str] = field(default_factory=list)

    def warned(self, sentence: str) -> None:
        self.lines.append(sentence)


def assert_close(found: Trainer, wanted: Trainer, out: Path, wanted_out: Path) -> None:
    assert losses(out) == pytest.approx(losses(wanted_out), abs=1e-12)
    for a, b in zip(weights(found), weights(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.core(1)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_losses_and_weights_are_those_of_single_launches(tmp_path: Path, clip_norm: float | None) -> None:
    run = RecordedRun(tmp_path / "recorded").with_(
        optimizer=khop.OptimizerSettings(clip_norm=clip_norm), epochs=1
    )
    on_cpu = replace(run, out=tmp_path / "cpu")
    recorded, wanted = fitted(run), fitted_on_cpu(on_cpu)
    assert isinstance(recorded._steps, RecordedSteps)
    assert recorded._steps.overflows < 4
    assert recorded._output.records[0]["overflows"] == recorded._steps.overflows
    assert "overflows" not in wanted._output.records[0]
    assert_close(recorded, wanted, run.out, on_cpu.out)
    assert recorded._output.records[0]["loss"] == pytest.approx(wanted._output.records[0]["loss"], abs=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("is_kept", [False, pytest.param(True, marks=pytest.mark.long)])
def test_shapes_that_batches_exceed_are_enlarged(tmp_path: Path, is_kept: bool) -> None:
    """The batches of steps 0 and 1 are known before step 5. All batches are drawn by kernels."""
    run = RecordedRun(tmp_path / "recorded", observer=Lines())
    on_cpu = replace(run, out=tmp_path / "cpu", observer=Lines())
    wanted = fitted_on_cpu(on_cpu)
    with too_small(is_kept=is_kept), patch.object(LocalSource, "draw", side_effect=AssertionError):
        recorded = fitted(run)
    assert isinstance(recorded._steps, RecordedSteps)
    found = [record["overflows"] for record in recorded._output.records]
    assert found == ([4, 4] if is_kept else [4, 1])
    assert recorded._steps.overflows == sum(found)
    assert isinstance(run.observer, Lines)
    line = "2 of the last 100 batches exceeded the recorded shapes: the steps are recorded anew with larger"
    assert [text.startswith(line) for text in run.observer.lines] == [True] * (not is_kept)
    assert_close(recorded, wanted, run.out, on_cpu.out)


@contextmanager
def failing(where: str) -> Iterator[None]:
    """Let the memory for a second batch in larger shapes, or the recording of their steps, fail."""
    made, of_slot, slots = BatchSlot.__init__, CapturedSteps._of_slot, list[BatchSlot]()

    def is_larger(slot: BatchSlot) -> bool:
        return slot._plan.capacities.nodes[-1]["node"] > slots[0]._plan.capacities.nodes[-1]["node"]

    def allocate(slot: BatchSlot, *arguments: object) -> None:
        made(slot, *arguments)  # type: ignore[arg-type]
        slots.append(slot)
        if where == "memory" and is_larger(slot) and is_larger(slots[-2]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nand more")

    def compute(steps: CapturedSteps, slot: BatchSlot) -> None:
        if where == "capture" and is_larger(slot):
            raise RuntimeError("operation not permitted when stream is capturing")
        of_slot(steps, slot)

    with patch.object(BatchSlot, "__init__", allocate), patch.object(CapturedSteps, "_of_slot", compute):
        yield


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("memory", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("capture", "operation not permitted when stream is"),
    ],
)
def test_a_run_keeps_its_shapes_if_larger_ones_cannot_be_recorded(
    tmp_path: Path, where: str, problem: str
) -> None:
    run = RecordedRun(tmp_path / "recorded", observer=Lines())
    on_cpu = replace(run, out=tmp_path / "cpu", observer=Lines())
    wanted = fitted_on_cpu(on_cpu)
    with too_small(), failing(where):
        recorded = fitted(run)
    assert isinstance(recorded._steps, RecordedSteps)
    assert [record["overflows"] for record in recorded._output.records] == [4, 4]
    assert recorded.state.shapes["since"] == 105  # before step 5, it failed for the next 100
    assert recorded.state.shapes["nodes"][0] == recorded.state.shapes["nodes"][-1]
    assert isinstance(run.observer, Lines)
    (line,) = run.observer.lines
    assert line.startswith("2 of the last 100 batches exceeded the recorded shapes, and larger steps could")
    assert f"not be recorded: {problem}" in line
    assert "and more" not in line
    assert_close(recorded, wanted, run.out, on_cpu.out)


@pytest.mark.long
@pytest.mark.parametrize("last", [(0, 3), (1, 1)], ids=["before", "after"])
def test_a_resumed_run_enlarges_shapes_before_the_same_step(tmp_path: Path, last: tuple[int, int]) -> None:
    whole = RecordedRun(tmp_path / "whole", dropout=0.5)
    run = replace(whole, out=tmp_path / "stopped", observer=Interrupting(*last))
    with too_small():
        wanted = fitted(whole)
        with as_device():
            with pytest.raises(KeyboardInterrupt):
                run.trainer().fit()
            resumed = replace(run, observer=whole.observer).trainer()
            resumed.resume()
            resumed.fit()
    assert resumed.state.shapes == wanted.state.shapes
    assert resumed.state.shapes["since"] == 5
    assert losses(run.out) == losses(whole.out)
    for a, b in zip(weights(resumed), weights(wanted), strict=True):
        assert torch.equal(a, b)


@given(
    overflows=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    late=st.integers(0, 5),
    window=st.integers(1, 12),
    stop=st.integers(0, 40),
)
def test_shapes_are_enlarged_before_the_same_steps_whenever_overflows_are_known(
    overflows: list[int], late: int, window: int, stop: int
) -> None:
    """`stop` is the step of a checkpoint, which knows all steps before it. Others are known at the latest."""

    def enlarged(stop: int) -> list[int]:
        exceeded, found, known = Exceeded(late, window), [], 0
        for step in range(len(overflows)):
            while known < (step if step == stop else step - late + 1):
                exceeded.add(known, overflows[known])
                known += 1
            if step == stop:
                exceeded = Exceeded(late, window, exceeded.since, list(exceeded.steps))
            if exceeded.is_reason(step):
                found.append(step)
                exceeded.since = step
        return found

    found, since = [], 0
    for step in range(len(overflows)):
        last = step - late
        if sum(overflows[max(since, last - window + 1, 0) : max(last + 1, 0)]) >= 2:
            found.append(step)
            since = step
    assert enlarged(stop) == enlarged(-1) == found


@pytest.mark.long
def test_sums_over_a_subgraph_are_those_of_single_launches(tmp_path: Path) -> None:
    run = RecordedRun(
        tmp_path / "recorded", rule=khop.SymmetricSum(), expansion=khop.Expansion.SUBGRAPH
    ).with_(epochs=1)
    run = replace(run, model=lambda: khop.models.GCN.for_graph(run.graph.store, 8))
    on_cpu = replace(run, out=tmp_path / "cpu")
    recorded, wanted = fitted(run), fitted_on_cpu(on_cpu)
    assert isinstance(recorded._steps, RecordedSteps)
    assert recorded._steps.overflows < 4
    assert_close(recorded, wanted, run.out, on_cpu.out)


@pytest.mark.long
def test_a_recorded_step_reads_one_flag_and_does_not_wait(tmp_path: Path) -> None:
    """Numbers of the host are read too: seeds when they are checked, exchanged values, and earlier losses."""
    waits: list[object] = []
    with as_device(), patch.object(Passed, "synchronize", lambda event: waits.append(event)):
        fused = khop.OptimizerSettings(options={"fused": True})  # as on a GPU: it reads no counts of steps
        trainer = RecordedRun(tmp_path).with_(epochs=1, optimizer=fused).trainer()
        trainer._begin("recorded")
        trainer._seconds = dict.fromkeys(STAGES, 0.0)
        steps = trainer._computed()
        trainer._update(next(steps))
        waits.clear()
        with counting() as found:
            step = next(steps)
        files = {read.rpartition(" ")[2].rpartition(":")[0] for read in found}
        assert files <= {"loading/device/batch_slot.py", "sampling/node_set.py", "sampling/seeds.py"}, found
        assert sum(n for read, n in found.items() if "loading/device/batch_slot.py" in read) == 1
        with counting() as found:
            trainer._update(step)
        steps.close()
    assert not waits
    files = {read.rpartition(" ")[2].rpartition(":")[0] for read in found}
    assert files <= {"training/step_clock.py", "training/run_output.py"}, found


@pytest.mark.long
@pytest.mark.parametrize(("of_host", "of_step", "waits"), [(1.0, 0.5, 0), (0.25, 1.0, 1)])
def test_the_host_waits_in_a_recorded_step_only_for_a_slower_device_which_never_idles(
    tmp_path: Path, of_host: float, of_step: float, waits: int
) -> None:
    device = TimedStreams(of_batch=0.25, of_step=of_step)
    with as_device(), patch.object(loaders, "streams_of", lambda _: device):
        trainer = RecordedRun(tmp_path).with_(epochs=1).trainer()
        trainer._begin("recorded")
        trainer._seconds = dict.fromkeys(STAGES, 0.0)
        found = []
        for step in trainer._computed():
            trainer._update(step)
            device.now += of_host
            found.append(device.waits)
            device.waits = 0
    assert found[2:] == [waits] * 2  # in the steps before, the slots are filled for the first time
    assert len(device.computed) == 4
    if waits:
        assert all(later[0] == earlier[1] for earlier, later in pairwise(device.computed))


@pytest.mark.long
def test_the_record_of_an_epoch_has_the_hit_rate_of_a_cache(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, columns="pinned", cache="50%").with_(epochs=1)
    (record,) = fitted(run)._output.records
    found = record["traffic"]
    assert 0.3 < found["device_hit_rate"] < 1
    assert found["device_hit_rate"] == round(found["device_cache_rows"] / found["needed_rows"], 4)


@pytest.mark.long
def test_a_stopped_run_goes_on_with_the_same_shapes(tmp_path: Path) -> None:
    whole = RecordedRun(tmp_path / "whole", dropout=0.5)
    wanted = fitted(whole)
    run = replace(whole, out=tmp_path / "stopped", observer=Interrupting(0, 2))
    with as_device():
        with pytest.raises(KeyboardInterrupt):
            run.trainer().fit()
        resumed = replace(run, observer=whole.observer).trainer()
        resumed.resume()
        shapes = resumed.state.shapes
        resumed.fit()
    assert shapes["world_size"] == 1
    assert resumed.state.shapes["nodes"] == shapes["nodes"] == wanted.state.shapes["nodes"]
    assert losses(run.out) == losses(whole.out)  # the same bits: dropout has a key for each step
    for a, b in zip(weights(resumed), weights(wanted), strict=True):
        assert torch.equal(a, b)


@pytest.mark.long
def test_the_loss_of_a_step_is_read_two_steps_later_and_before_a_checkpoint(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path).with_(epochs=1)
    seen: list[tuple[int, float]] = []
    with as_device():
        trainer = run.trainer()
        advance = trainer._advance

        def noting(*arguments: object) -> None:
            advance(*arguments)  # type: ignore[arg-type]
            known = losses(tmp_path) if (tmp_path / "steps.jsonl").exists() else {}
            seen.append((trainer.state.step, trainer.state.loss_sum))
            assert len(known) <= len(seen)

        trainer._advance = noting  # type: ignore[method-assign]
        trainer.fit()
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    assert [loss > 0 for _, loss in seen[:3]] == [False, False, True]
    per_seed = [record["loss"] for record in trainer._output.records]
    assert per_seed[0] > seen[3][1] / 14  # the record of the epoch has the losses of all steps


@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_the_run_before_a_checkpoint(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path)
    columns = {"node": {**run.graph.features.columns["node"], "y": torch.full((60,), 99)}}  # no class
    wrong = replace(run, graph=replace(run.graph, features=FeatureTable(columns)))
    with as_device(), pytest.raises(ValueError, match=r"loss is nan in epoch 0, step 0"):
        wrong.trainer().fit()
    assert not (tmp_path / "checkpoints" / "last").exists()


def model_with(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), module)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.BatchNorm1d(2), "1 (BatchNorm1d) computes statistics over the rows of a batch"),
        (nn.BatchNorm1d(2, track_running_stats=False), "1 (BatchNorm1d) computes statistics"),
        (nn.Embedding(3, 2, sparse=True), "1 (Embedding) has sparse gradients"),
        (NodeEmbedding(3, 2), "1 (NodeEmbedding) has sparse gradients"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_that_cannot_be_recorded_are_named(module: nn.Module, reason: str) -> None:
    found = why_not_recorded(model_with(module))
    assert found is not None
    assert reason in found


def test_other_models_may_be_recorded() -> None:
    assert why_not_recorded(model_with(nn.LayerNorm(2))) is None
    assert why_not_recorded(model_with(nn.Embedding(3, 2))) is None


def _train(run: RecordedRun, rank: int, *, resumes: bool = False) -> None:
    """Train as one of several ranks, and write what to compare."""
    trainer = run.trainer()
    if resumes:
        trainer.resume()
    trainer.fit()
    steps = trainer._steps
    assert isinstance(steps, RecordedSteps)
    (run.out / f"overflows-{rank}").write_text(str(steps.overflows))
    (run.out / f"shapes-{rank}").write_text(json.dumps(steps.state()))
    torch.save(weights(trainer), run.out / f"weights-{rank}.pt")


def of_two_ranks(out: Path) -> tuple[list[int], dict[str, Any], list[Tensor]]:
    """Overflows of both ranks, and their shapes and weights, which are equal."""
    overflows = [int((out / f"overflows-{rank}").read_text()) for rank in range(2)]
    shapes = [json.loads((out / f"shapes-{rank}").read_text()) for rank in range(2)]
    assert shapes[0] == shapes[1]
    first, second = (torch.load(out / f"weights-{rank}.pt") for rank in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    return overflows, shapes[0], first


def assert_close_on_ranks(out: Path, found: list[Tensor], wanted: Trainer, wanted_out: Path) -> None:
    assert losses(out) == pytest.approx(losses(wanted_out), abs=1e-12)
    for a, b in zip(found, weights(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


CLIPPED = khop.OptimizerSettings(clip_norm=0.5)


@covered
def _train_on_rank(rank: int, device: str, out: Path, small_rank: int) -> None:
    """Train on ranks; the batches of `small_rank` all exceed their capacities."""
    make = CapturedSteps._issue

    def too_large(steps: CapturedSteps, number: int, given: StepInput) -> object:
        return replace(make(steps, number, given), made=None)

    with as_device(), patch.object(CapturedSteps, "_issue", too_large if rank == small_rank else make):
        _train(RecordedRun(out).with_(optimizer=CLIPPED), rank)


@pytest.mark.long
def test_one_of_two_ranks_may_exceed_its_shapes_while_the_other_replays(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    alone = RecordedRun(tmp_path / "alone").with_(optimizer=CLIPPED)
    wanted = fitted_on_cpu(alone)
    out = tmp_path / "two"
    out.mkdir()
    ranks.launch(_train_on_rank, 2, (out, 1))
    (of_first, of_second), shapes, found = of_two_ranks(out)
    assert of_second == 8
    assert of_first < 8
    assert shapes["since"] == 5  # both have enlarged their shapes, before the same step
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert sum(record["overflows"] for record in records) == 8 + of_first
    assert_close_on_ranks(out, found, wanted, alone.out)


@covered
def _train_with_little_memory(rank: int, device: str, out: Path, full_rank: int) -> None:
    """Train on ranks; `full_rank` has no memory for larger shapes."""
    with as_device(), too_small(), failing("memory" if rank == full_rank else "nowhere"):
        _train(RecordedRun(out, observer=Written(out)).with_(optimizer=CLIPPED), rank)


@dataclass
class Written(Unwatched):
    """An observer that writes warnings to a file."""

    out: Path

    def warned(self, sentence: str) -> None:
        with (self.out / "warnings").open("a") as file:
            file.write(f"{sentence}\n")


@pytest.mark.long
def test_all_ranks_keep_their_shapes_if_one_cannot_record_larger_ones(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    alone = RecordedRun(tmp_path / "alone").with_(optimizer=CLIPPED)
    wanted = fitted_on_cpu(alone)
    out = tmp_path / "two"
    out.mkdir()
    ranks.launch(_train_with_little_memory, 2, (out, 1))
    overflows, shapes, found = of_two_ranks(out)
    assert overflows == [8, 8]
    assert shapes["since"] == 54  # before step 4, it failed for the next 50 steps
    (line,) = (out / "warnings").read_text().splitlines()
    assert "could not be recorded: CUDA out of memory. Tried to allocate 2.00 GiB." in line
    assert_close_on_ranks(out, found, wanted, alone.out)


@covered
def _stop_and_resume(rank: int, device: str, out: Path, small_rank: int) -> None:
    """Train a whole run, and one that is stopped after its first step; `small_rank` measures no neighbors."""
    whole = RecordedRun(out / "whole", dropout=0.5)
    stopped = replace(whole, out=out / "stopped", observer=Interrupting(0, 0))
    with as_device(), too_small() if rank == small_rank else nullcontext():
        _train(whole, rank)
        with pytest.raises(KeyboardInterrupt):
            stopped.trainer().fit()
        _train(replace(stopped, observer=whole.observer), rank, resumes=True)


@pytest.mark.long
def test_ranks_have_equal_shapes_from_the_first_step_also_after_a_resume(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    ranks.launch(_stop_and_resume, 2, (tmp_path, 1))
    overflows, shapes, wanted = of_two_ranks(tmp_path / "whole")
    assert max(overflows) < 8
    assert shapes["since"] == 0
    resumed = of_two_ranks(tmp_path / "stopped")
    assert resumed[1] == shapes
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    for a, b in zip(resumed[2], wanted, strict=True):
        assert torch.equal(a, b)
