"""A trainer with recorded steps takes the course of one without, also over overflows, stops and ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import khop
from khop.graph.features.table import FeatureTable
from khop.loading.device.batch_slot import StepInput
from khop.loading.local_source import LocalSource
from khop.models.node_embedding import NodeEmbedding
from khop.training.recorded_steps import CapturedSteps, Exceeded, RecordedSteps, why_not_recorded
from khop.training.step_clock import STAGES, Unwatched
from khop.training.trainer import Trainer
from support.covered import covered
from support.host_reads import counting
from support.recorded_runs import RecordedRun, as_device, too_small
from support.recorders import Passed
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
    assert losses(out) == pytest.approx(losses(wanted_out), abs=1e-9)
    for a, b in zip(weights(found), weights(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


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
    assert recorded._output.records[0]["loss"] == pytest.approx(wanted._output.records[0]["loss"], abs=1e-9)


@pytest.mark.core(1)
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
def test_a_recorded_step_reads_one_flag_and_waits_for_its_event_alone(tmp_path: Path) -> None:
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
        assert len(waits) == 1
        files = {read.rpartition(" ")[2].rpartition(":")[0] for read in found}
        assert files <= {"loading/device/batch_slot.py", "sampling/node_set.py", "sampling/seeds.py"}, found
        assert sum(n for read, n in found.items() if "loading/device/batch_slot.py" in read) == 1
        with counting() as found:
            trainer._update(step)
        steps.close()
    assert len(waits) == 1  # the loss of an earlier step is there
    files = {read.rpartition(" ")[2].rpartition(":")[0] for read in found}
    assert files <= {"training/step_clock.py", "training/run_output.py"}, found


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


@covered
def _train_on_rank(rank: int, device: str, out: Path, small_rank: int | None) -> None:
    """Train on ranks; the batches of `small_rank` all exceed their capacities."""
    with as_device():
        trainer = RecordedRun(out).with_(optimizer=khop.OptimizerSettings(clip_norm=0.5)).trainer()
        make = CapturedSteps._issue

        def too_large(steps: CapturedSteps, number: int, given: StepInput) -> object:
            return replace(make(steps, number, given), made=None)

        with patch.object(CapturedSteps, "_issue", too_large if rank == small_rank else make):
            trainer.fit()
        steps = trainer._steps
        assert isinstance(steps, RecordedSteps)
        (out / f"overflows-{rank}").write_text(str(steps.overflows))
        (out / f"shapes-{rank}").write_text(json.dumps(steps.state()))
        torch.save(weights(trainer), out / f"weights-{rank}.pt")


@pytest.mark.long
def test_one_of_two_ranks_may_exceed_its_shapes_while_the_other_replays(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    alone = RecordedRun(tmp_path / "alone").with_(optimizer=khop.OptimizerSettings(clip_norm=0.5))
    wanted = fitted_on_cpu(alone)
    out = tmp_path / "two"
    out.mkdir()
    ranks.launch(_train_on_rank, 2, (out, 1))
    assert int((out / "overflows-1").read_text()) == 8
    assert (of_first := int((out / "overflows-0").read_text())) < 8
    shapes = [json.loads((out / f"shapes-{rank}").read_text()) for rank in range(2)]
    assert shapes[0] == shapes[1]
    assert shapes[0]["since"] == 5  # both have enlarged their shapes, before the same step
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert sum(record["overflows"] for record in records) == 8 + of_first
    assert losses(out) == pytest.approx(losses(alone.out), abs=1e-9)
    of_ranks = [torch.load(out / f"weights-{rank}.pt") for rank in range(2)]
    for first, second, other in zip(*of_ranks, weights(wanted), strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, other, rtol=0, atol=1e-9)
