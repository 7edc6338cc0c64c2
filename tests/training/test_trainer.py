"""Training takes one course, whatever the threads and however often it is stopped.

Ctrl-C waits for what belongs together, and is not lost.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from khop.batch import Batch
from khop.errors import Terminated
from khop.graph.features.table import FeatureTable
from khop.training.checkpoint import StateCopy, load_checkpoint
from khop.training.optimizer_settings import OptimizerSettings, Schedule
from khop.training.run_log import RunLog
from khop.training.settings import CheckpointPolicy
from khop.training.step_clock import STAGES, TimedStep, Unwatched, seconds_by_stage
from khop.training.tasks import NodeClassification, WithMetric
from khop.training.trainer import Trainer, interrupts_held, interrupts_noted, terminations_raised
from support.commands import PROGRAM
from support.small_graphs import one_type
from support.small_runs import STEPS, Interrupting, SmallRun, sign_again, without_seconds


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def lines(run: SmallRun) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]


def checkpoint_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.long
def test_sampler_threads_do_not_change_the_course(tmp_path: Path) -> None:
    runs = [SmallRun(tmp_path / str(threads), threads=threads) for threads in (1, 2, 4)]
    trainers = [run.trainer() for run in runs]
    results = [trainer.fit() for trainer in trainers]
    for trainer, result in zip(trainers[1:], results[1:], strict=True):
        assert without_seconds(result.records) == without_seconds(results[0].records)
        assert_same(weights(trainer), weights(trainers[0]))


def test_every_epoch_has_a_line(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    result = run.trainer().fit()
    records = lines(run)
    assert records == result.records
    assert [(record["epoch"], record["step"]) for record in records] == [(0, 5), (1, 10), (2, 15)]
    for record in records:
        assert record.keys() == {"epoch", "step", "loss", "train_accuracy", "val_accuracy", "seconds"}
        seconds = record["seconds"]
        assert isinstance(seconds, dict)
        stages = ("sampling", "gathering", "waiting", "computing", "evaluating", "total")
        assert all(seconds[stage] >= 0 for stage in stages)
        assert seconds["waiting"] + seconds["computing"] + seconds["evaluating"] <= seconds["total"] + 1e-3


def test_the_loss_is_the_mean_over_the_seeds_before_each_update(tmp_path: Path) -> None:
    """One epoch by hand, without dropout: losses of 8, 8, 8, 8 and 6 seeds, Adam in between."""
    run = SmallRun(tmp_path, dropout=0.0).with_(epochs=1, weight_decay=0.1)
    by_hand = run.trainer()
    optimizer = torch.optim.Adam(by_hand.model.parameters(), lr=0.01, weight_decay=0.1)
    total = 0.0
    for batch in by_hand.loader.epoch(0):
        losses = F.cross_entropy(by_hand.model(batch), batch.seed_column("y"), reduction="none")
        total += float(losses.detach().double().sum())
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()

    trainer = run.trainer()
    (record,) = trainer.fit().records

    assert record["loss"] == pytest.approx(total / 38, abs=1e-6)
    for name, tensor in weights(trainer).items():
        torch.testing.assert_close(tensor, by_hand.model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_dropout_depends_on_the_seed_and_torchs_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = SmallRun(tmp_path / "a").trainer().fit()
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(4)
    again = SmallRun(tmp_path / "b").trainer().fit()
    other = SmallRun(tmp_path / "c").with_(seed=1).trainer().fit()
    assert without_seconds(again.records) == without_seconds(first.records)
    assert without_seconds(other.records) != without_seconds(first.records)


@pytest.mark.long
@pytest.mark.parametrize("metric", ["accuracy", "rmse"])
def test_as_many_of_the_best_epochs_are_kept_as_are_asked_for(tmp_path: Path, metric: str) -> None:
    """In the order of their scores; of equal scores the earlier epoch comes first."""
    sign = 1 if metric == "accuracy" else -1
    scores = [sign * score for score in (0.5, 0.2, 0.9, 0.7, 0.7, 0.1)]
    policy = CheckpointPolicy(best=3)
    trainer = SmallRun(tmp_path).with_(epochs=len(scores), checkpoints=policy).trainer()
    trainer.task = WithMetric(NodeClassification("node", "y"), metric)
    trainer.evaluate = lambda: {"val": scores[trainer.state.epoch]}
    result = trainer.fit()
    assert (result.best_epoch, result.best_score) == (2, scores[2])
    folder = tmp_path / "checkpoints"
    kept = [load_checkpoint(folder / name).training["epoch"] for name in ("best", "best-1", "best-2")]
    assert kept == [3, 4, 5]  # the epoch that would come next
    assert not (folder / "best-3").exists()


def test_the_best_and_the_last_epoch_are_kept(tmp_path: Path) -> None:
    given = iter([0.1, 0.5, 0.5, 0.4])
    seen: list[dict[str, Tensor]] = []
    run = SmallRun(tmp_path, evaluate=lambda: seen.append(weights(trainer)) or {"val": next(given)})
    trainer = run.with_(epochs=4).trainer()
    result = trainer.fit()
    assert (result.best_epoch, result.best_score) == (1, 0.5)
    best, last = (load_checkpoint(tmp_path / "checkpoints" / name) for name in ("best", "last"))
    assert_same(best.model, seen[1])
    assert_same(last.model, seen[3])
    assert (best.training["epoch"], last.training["epoch"]) == (2, 4)


def test_training_stops_when_patience_is_over(tmp_path: Path) -> None:
    given = iter([0.1, 0.5, 0.4, 0.5, 0.9])
    run = SmallRun(tmp_path, evaluate=lambda: {"val": next(given)}).with_(epochs=9, patience=2)
    result = run.trainer().fit()
    assert len(result.records) == 4
    assert result.best_epoch == 1


def test_only_some_epochs_are_evaluated_and_always_the_last(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, evaluate=lambda: {"val": 0.5, "extra": 1.0}).with_(epochs=5, evaluate_every=2)
    run.trainer().fit()
    assert ["val_accuracy" in record for record in lines(run)] == [False, True, False, True, True]
    assert "extra_accuracy" in lines(run)[1]


def test_scores_without_validation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"evaluate\(\) returned scores of \['test'\]: 'val' is required"):
        SmallRun(tmp_path, evaluate=lambda: {"test": 1.0}).trainer().fit()


@dataclass
class Telling(Unwatched):
    """Writes down what it is told."""

    told: list[object] = field(default_factory=list)

    def started(self, epochs: int, steps: int) -> None:
        self.told.append((epochs, steps))

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.told.append((epoch, step, loss > 0))

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        self.told.append(record["epoch"])


def test_the_observer_gets_every_step_in_order(tmp_path: Path) -> None:
    observer = Telling()
    SmallRun(tmp_path, observer=observer).with_(epochs=2).trainer().fit()
    steps = [[(epoch, step, True) for step in range(STEPS)] for epoch in range(2)]
    assert observer.told == [(2, STEPS), *steps[0], 0, *steps[1], 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("float32", torch.float32), ("float64", torch.float64), ("bfloat16", torch.float32)],
)
def test_models_learn_in_every_precision(tmp_path: Path, precision: str, dtype: torch.dtype) -> None:
    run = SmallRun(tmp_path, dropout=0.0).with_(epochs=8, learning_rate=0.05, precision=precision)
    trainer = run.trainer()
    losses = [float(str(record["loss"])) for record in trainer.fit().records]
    assert losses[-1] < losses[0] - 0.1
    assert {tensor.dtype for tensor in weights(trainer).values()} == {dtype}


def test_precisions_differ_as_much_as_they_should(tmp_path: Path) -> None:
    losses = {}
    for precision in ("float32", "float64", "bfloat16"):
        run = SmallRun(tmp_path / precision).with_(precision=precision, epochs=1)
        losses[precision] = float(str(run.trainer().fit().records[0]["loss"]))
    assert 0 < abs(losses["float32"] - losses["float64"]) < 1e-5
    assert 1e-5 < abs(losses["bfloat16"] - losses["float64"]) < 0.05


class Convolutions(nn.Module):
    """A user's own module, which knows nothing of precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(7, 8), SAGEConv(8, 3)])

    def forward(self, batch: Batch) -> Tensor:
        x = batch["x"]
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            x = layer((x, x[: block.num_dst]), block.edge_index)
        return x[batch.seed_index]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_any_module_over_a_batch_trains(tmp_path: Path, precision: str) -> None:
    run = SmallRun(tmp_path, model=Convolutions, evaluate=lambda: {"val": 0.5})
    result = run.with_(precision=precision, epochs=6, learning_rate=0.03).trainer().fit()
    losses = [float(str(record["loss"])) for record in result.records]
    assert losses[-1] < losses[0]


def without_numbers(run: SmallRun) -> SmallRun:
    """The run over features that are all NaN."""
    columns = run.graph.features.columns["node"]
    x = torch.full_like(columns["x"], float("nan"))
    return replace(run, graph=replace(run.graph, features=FeatureTable({"node": {**columns, "x": x}})))


def test_a_loss_that_is_no_number_names_the_step_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, evaluate=lambda: {"val": 0.5})
    run.with_(epochs=1).trainer().fit()
    before = checkpoint_bytes(tmp_path / "checkpoints" / "last")
    trainer = without_numbers(run).trainer()
    trainer.resume()
    threads = threading.active_count()
    with pytest.raises(ValueError, match=r"the loss is nan in epoch 1, step 0: lower .*last is intact"):
        trainer.fit()
    assert checkpoint_bytes(tmp_path / "checkpoints" / "last") == before
    assert threading.active_count() == threads


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class FullFor(Unwatched):
    """A disk that takes nothing of more than a few bytes in one epoch, and has room again afterwards."""

    epoch: int
    warnings: list[str] = field(default_factory=list)
    disk: ExitStack = field(default_factory=ExitStack)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == (self.epoch, 0):
            self.disk.enter_context(full_disk(10))
        if (epoch, step) == (self.epoch + 1, 0):
            self.disk.close()

    def warned(self, sentence: str) -> None:
        self.warnings.append(sentence)


def test_the_run_continues_while_the_disk_is_full_and_nothing_is_lost(tmp_path: Path) -> None:
    observer = FullFor(epoch=1)
    result = SmallRun(tmp_path / "run", observer=observer).trainer().fit()
    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()
    assert without_seconds(result.records) == without_seconds(expected.records)
    assert any("metrics.jsonl: File too large" in sentence for sentence in observer.warnings)
    assert all(sentence.endswith("the run continues") for sentence in observer.warnings)
    assert len(lines(SmallRun(tmp_path / "run"))) == 3
    first, second = (
        load_checkpoint(tmp_path / name / "checkpoints" / "last") for name in ("run", "undisturbed")
    )
    assert_same(first.model, second.model)


@pytest.mark.long
def test_a_disk_that_stays_full_ends_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    run.with_(epochs=1).trainer().fit()
    before = checkpoint_bytes(run.out / "checkpoints" / "last")
    trainer = run.trainer()
    trainer.resume()
    with full_disk(2000), pytest.raises(OSError, match="File too large: "):
        trainer.fit()
    assert checkpoint_bytes(run.out / "checkpoints" / "last") == before
    again = run.trainer()
    again.resume()
    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()
    assert without_seconds(again.fit().records) == without_seconds(expected.records)


@dataclass
class Watching(Unwatched):
    """Keeps what it is told of checkpoints."""

    warnings: list[str] = field(default_factory=list)

    def warned(self, sentence: str) -> None:
        self.warnings.append(sentence)


def test_checkpoints_come_every_few_steps_and_a_killed_run_continues_from_the_last(tmp_path: Path) -> None:
    """Killed at the ninth update of fifteen, with a checkpoint every two."""
    program = KILLED.replace("(2, 1,", "(1, 3,").replace(
        ").trainer()", ").with_(checkpoints=CheckpointPolicy(steps=2)).trainer()"
    )
    killed(program, tmp_path / "run")
    trainer = SmallRun(tmp_path / "run").trainer()
    trainer.resume()
    # The last one may have been in the making: it then counts for nothing.
    assert (0, 2) <= (trainer.state.epoch, trainer.state.step) <= (1, 3)
    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()
    assert without_seconds(trainer.fit().records) == without_seconds(expected.records)
    steps = [
        [
            (record["epoch"], record["step"], record["loss"])
            for record in RunLog(path / "steps.jsonl").records()
        ]
        for path in (tmp_path / "run", tmp_path / "undisturbed")
    ]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 3 * STEPS


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    expected = run.trainer().fit()
    damaged = tmp_path / "checkpoints" / "last" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    observer = Watching()
    trainer = replace(run, observer=observer).trainer()
    trainer.resume()
    assert trainer.state.epoch == 2
    (warning,) = observer.warnings
    assert warning.endswith(
        "last/model.safetensors: cut short or damaged; " + f"{damaged.parent}-1 is used instead"
    )
    assert without_seconds(trainer.fit().records) == without_seconds(expected.records)
    for kept in damaged.parent.parent.iterdir():
        (kept / "state.json").write_text("")
    with pytest.raises(ValueError, match=r"last/state\.json: cut short or damaged; use another checkpoint"):
        run.trainer().resume()


def test_the_damaged_checkpoint_is_set_aside_not_the_whole_one(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, observer=Interrupting(2, 1))
    with pytest.raises(KeyboardInterrupt):
        run.trainer().fit()
    checkpoints = tmp_path / "checkpoints"
    whole = checkpoint_bytes(checkpoints / "last-1")
    (checkpoints / "last" / "state.json").write_text("")
    trainer = replace(run, observer=Interrupting(2, 0)).trainer()
    trainer.resume()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert checkpoint_bytes(checkpoints / "last-1") == whole
    assert checkpoint_bytes(checkpoints / "last-damaged")["state.json"] == b""
    assert load_checkpoint(checkpoints / "last").training["step"] == 1


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "changed",
    [{"epoch": 0}, {"epoch": 5}, {"epoch": -1}, {"step": 9}, {"step": 4}, {"best_epoch": 7}, {"seeds": "x"}],
    ids=str,
)
def test_a_state_that_contradicts_itself_is_refused_before_anything_changes(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    """The state has its digest all the same."""
    run = SmallRun(tmp_path, observer=Interrupting(1, 2))
    with pytest.raises(KeyboardInterrupt):
        run.trainer().fit()
    sign_again(tmp_path / "checkpoints" / "last", **changed)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"last: epoch .* contradict the rest of the state"):
        run.trainer().resume()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_lines_of_metrics_that_are_damaged_come_back_from_the_checkpoint(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    expected = run.trainer().fit()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    steps = (tmp_path / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_bytes(before.replace(b'"epoch": 1', b'"epoch"\xff 1'))
    (tmp_path / "steps.jsonl").write_bytes(b"".join([*steps[:3], b"{\n", *steps[4:]]))
    observer = Watching()
    trainer = replace(run, observer=observer).trainer()
    trainer.resume()
    assert trainer.fit().records == expected.records
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert (tmp_path / "steps.jsonl").read_bytes() == b"".join(steps[:3] + steps[4:])
    assert observer.warnings == [
        f"{tmp_path}/metrics.jsonl: 1 lines were damaged or lost, and are restored from the checkpoint",
        f"{tmp_path}/steps.jsonl: 1 of 15 lines are damaged or lost, and left out",
    ]


def test_an_endless_loss_is_an_error_too(tmp_path: Path) -> None:
    class Endless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, batch: Batch) -> Tensor:
            return torch.full((batch.seed_index.numel(), 3), -1e30) * self.weight * torch.tensor([1e30, 0, 0])

    with pytest.raises(ValueError, match=r"the loss is (inf|nan) in epoch 0, step 0"):
        SmallRun(tmp_path, model=Endless).trainer().fit()


@pytest.mark.core(1)
@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (1, 2), (1, STEPS - 1), (2, STEPS - 1)])
def test_after_ctrl_c_training_continues_with_the_very_next_batch(
    tmp_path: Path, epoch: int, step: int
) -> None:
    undisturbed = SmallRun(tmp_path / "undisturbed").trainer()
    expected = undisturbed.fit()
    run = SmallRun(tmp_path / "run", observer=Interrupting(epoch, step))
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run.trainer().fit()
    assert threading.active_count() == threads
    assert load_checkpoint(run.out / "checkpoints" / "last").training["step"] == step + 1

    again = replace(run, observer=Telling(), threads=1)
    trainer = again.trainer()
    trainer.resume()
    result = trainer.fit()

    assert isinstance(again.observer, Telling)
    first = (epoch, step + 1, True) if step + 1 < STEPS else epoch
    assert again.observer.told[1] == first
    assert without_seconds(result.records) == without_seconds(expected.records)
    assert_same(weights(trainer), weights(undisturbed))
    assert result.best_epoch == expected.best_epoch


class WithStatistics(nn.Module):
    """A model with buffers that each forward pass changes, and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(7), nn.Linear(7, 3)
        self.register_buffer("rows", torch.tensor(0))
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("shares", torch.full((3,), torch.nan), persistent=False)
        self.register_buffer("adjacency", torch.eye(3).to_sparse(), persistent=False)
        self.register_buffer("latest", torch.empty(0), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        x = self.norm(batch["x"][batch.seed_index])
        self.rows += x.shape[0]
        self.latest = x.detach()[: 1 + int(self.rows) % 3]
        return self.linear(x)


@pytest.mark.parametrize("stopped_in", [1, 2, 7])
def test_a_batch_that_is_not_finished_leaves_no_trace_in_the_buffers(tmp_path: Path, stopped_in: int) -> None:
    """Ctrl-C comes after the forward pass of the first, the second or the seventh update."""

    def run(out: Path) -> Trainer:
        return SmallRun(out, evaluate=lambda: {"val": 0.5}, model=WithStatistics).trainer()

    class Stopping(NodeClassification):
        calls = 0

        def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
            self.calls += 1
            if self.calls == stopped_in:
                raise KeyboardInterrupt
            return super().losses(outputs, batch)

    expected = run(tmp_path / "whole")
    expected.fit()
    stopped = run(tmp_path / "run")
    stopped.task = Stopping("node", "y")
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    resumed = run(tmp_path / "run")
    resumed.resume()
    assert int(resumed.model.rows) == 8 * (stopped_in - 1) - 2 * (stopped_in > 5)
    resumed.fit()
    assert_same(weights(resumed), weights(expected))


@pytest.mark.long
def test_sigterm_is_as_ctrl_c(tmp_path: Path) -> None:
    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()
    run = SmallRun(tmp_path / "run", observer=Interrupting(1, 2, signal.SIGTERM))
    with pytest.raises(Terminated):
        run.trainer().fit()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    trainer = SmallRun(tmp_path / "run").trainer()
    trainer.resume()
    assert (trainer.state.epoch, trainer.state.step) == (1, 3)
    assert without_seconds(trainer.fit().records) == without_seconds(expected.records)


def test_ctrl_c_in_the_evaluation_keeps_the_epoch(tmp_path: Path) -> None:
    def interrupted() -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return {"val": 0.0}

    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()
    with pytest.raises(KeyboardInterrupt):
        SmallRun(tmp_path / "run", evaluate=interrupted).trainer().fit()
    trainer = SmallRun(tmp_path / "run").trainer()
    trainer.resume()
    assert without_seconds(trainer.fit().records) == without_seconds(expected.records)


KILLED = """
import signal, sys
from pathlib import Path
from khop.training.settings import CheckpointPolicy
from support.small_runs import Interrupting, SmallRun

SmallRun(Path(sys.argv[1]), observer=Interrupting(2, 1, signal.SIGKILL)).trainer().fit()
"""


def killed(program: str, out: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    run = subprocess.run([*PROGRAM, program, str(out)], env=environment, check=False)
    assert run.returncode == -signal.SIGKILL


@pytest.mark.long
def test_a_killed_run_continues_from_an_epoch_that_is_whole(tmp_path: Path) -> None:
    killed(KILLED, tmp_path / "run")
    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()

    trainer = SmallRun(tmp_path / "run").trainer()
    trainer.resume()
    # Of epoch 1, where the kill came while the checkpoint after it was in the making.
    assert (trainer.state.epoch, trainer.state.step) in ((1, 0), (2, 0))
    assert without_seconds(trainer.fit().records) == without_seconds(expected.records)


def test_a_new_run_does_not_write_over_an_old_one(tmp_path: Path) -> None:
    SmallRun(tmp_path).with_(epochs=1).trainer().fit()
    with pytest.raises(ValueError, match="it already contains a run; resume it, or choose another folder"):
        SmallRun(tmp_path).trainer().fit()


@pytest.mark.long
def test_a_run_that_ended_before_its_first_update_can_be_resumed(tmp_path: Path) -> None:
    @dataclass
    class InterruptedAtOnce(Unwatched):
        def started(self, epochs: int, steps: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        SmallRun(tmp_path / "run", observer=InterruptedAtOnce()).trainer().fit()
    trainer = SmallRun(tmp_path / "run").trainer()
    trainer.resume()
    expected = SmallRun(tmp_path / "undisturbed").trainer().fit()
    assert without_seconds(trainer.fit().records) == without_seconds(expected.records)


def test_resuming_without_a_checkpoint_or_with_other_seeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="last: no checkpoint exists"):
        SmallRun(tmp_path).trainer().resume()
    SmallRun(tmp_path).with_(epochs=1).trainer().fit()
    folder = tmp_path / "checkpoints" / "last"
    loader = load_checkpoint(folder).training["loader"]
    assert isinstance(loader, dict)
    fingerprint = loader["fingerprint"] | {"batch_size": 9}
    sign_again(folder, loader=loader | {"fingerprint": fingerprint})
    with pytest.raises(ValueError, match=r"another batch_size \(9, here 8\)"):
        SmallRun(tmp_path).trainer().resume()


def test_a_checkpoint_that_is_no_trainers_is_refused(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    trainer = run.trainer()
    StateCopy.of(trainer.model, trainer.optimizer, {"epoch": 1}).write(tmp_path / "checkpoints" / "last")
    with pytest.raises(ValueError, match=r"last: has the training state \['epoch'\], .* is expected"):
        trainer.resume()


def test_a_run_that_was_begun_otherwise_is_not_continued(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    run.with_(epochs=1, facts={"graph": "abc", "khop": "1"}).trainer().fit()
    with pytest.raises(
        ValueError, match=r"last: the run was started with other settings: graph was abc and is abd\. Restore"
    ):
        run.with_(facts={"graph": "abd", "khop": "1"}).trainer().resume()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A run of two epochs with a cosine schedule, after its end."""
    run = SmallRun(tmp_path_factory.mktemp("begun")).with_(epochs=2, schedule=Schedule("cosine"))
    run.trainer().fit()
    return run


@pytest.mark.core(4)
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"learning_rate": 0.001}, "learning rate was 0.01 and is 0.001"),
        ({"weight_decay": 0.5}, "weight decay was 0.0 and is 0.5"),
        ({"optimizer": OptimizerSettings(torch.optim.AdamW)}, "optimizer was Adam and is AdamW"),
        (
            {"optimizer": OptimizerSettings(options={"betas": (0.5, 0.5)})},
            r"options of the optimizer was {} and is {'betas': \(0.5, 0.5\)}",
        ),
        ({"optimizer": OptimizerSettings(clip_norm=0.1)}, "clip_norm was None and is 0.1"),
        ({"schedule": Schedule("cosine", warmup=3)}, "schedule was .*warmup=0.* and is .*warmup=3"),
        ({"precision": "float64"}, "precision was float32 and is float64"),
        ({"seed": 5}, "seed was 0 and is 5"),
        ({"epochs": 4}, "epochs, for the cosine schedule, was 2 and is 4"),
        ({"max_steps": 7}, "max_steps, for the cosine schedule, was None and is 7"),
    ],
    ids=str,
)
def test_a_setting_of_the_updates_that_changed_is_named(
    begun: SmallRun, changed: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"last: the run was started with other settings: {sentence}"):
        begun.with_(**changed).trainer().resume()


def test_settings_that_may_change_do_not_stop_a_resume(tmp_path: Path) -> None:
    run = SmallRun(tmp_path).with_(epochs=1)
    run.with_(weight_decay=0).trainer().fit()  # equals the 0.0 of the other run
    changed = run.with_(
        epochs=2, max_steps=STEPS + 2, patience=3, target=("accuracy", 2.0), evaluate_every=0.5
    )
    changed = changed.with_(checkpoints=CheckpointPolicy(steps=1), launches="single")
    trainer = changed.trainer()
    trainer.resume()
    assert len(trainer.fit().records) == 2


def test_a_run_that_is_over_has_nothing_left_to_do(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, graph=one_type())
    first = run.trainer().fit()
    trainer = run.trainer()
    trainer.resume()
    assert trainer.fit().records == first.records


@dataclass
class Timing(Unwatched):
    """An observer that keeps what it is told of time."""

    steps: list[TimedStep] = field(default_factory=list)

    def timed(self, step: TimedStep) -> None:
        self.steps.append(step)


def test_every_step_has_a_line_that_says_where_the_time_went(tmp_path: Path) -> None:
    timing = Timing()
    result = SmallRun(tmp_path, observer=timing).with_(epochs=1).trainer().fit()
    steps = RunLog(tmp_path / "steps.jsonl").records()
    assert [(line["epoch"], line["step"], line["seeds"]) for line in steps] == [
        (0, step, seeds) for step, seeds in enumerate([8, 8, 8, 8, 6])
    ]
    in_lines, in_spans = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0)
    for line, timed in zip(steps, timing.steps, strict=True):
        seconds = line["seconds"]
        assert isinstance(seconds, dict)
        assert list(seconds) == ["late", *STAGES]
        assert seconds["late"] == [0.0]
        for stage in STAGES:
            (of_one_rank,) = seconds[stage]
            in_lines[stage] += of_one_rank
            in_spans[stage] += seconds_by_stage(timed.spans)[stage]
    of_epoch = result.records[0]["seconds"]
    assert isinstance(of_epoch, Mapping)
    for stage in ("waiting", "moving", "sampling", "gathering"):
        assert in_lines[stage] == pytest.approx(in_spans[stage], abs=1e-4)
        assert of_epoch[stage] == pytest.approx(in_spans[stage], abs=1e-3)
    assert in_lines["computing"] <= in_spans["computing"] + 1e-4  # the last update stands in no line


def test_spans_of_the_training_thread_leave_no_gap_within_a_step(tmp_path: Path) -> None:
    timing = Timing()
    SmallRun(tmp_path, observer=timing).with_(epochs=1).trainer().fit()
    for step in timing.steps:
        assert {span.thread for span in step.spans[:2]} <= {"khop-worker-0", "khop-worker-1"}
        own = step.spans[2:]
        assert {span.thread for span in own} == {"MainThread"}
        assert [span.ended for span in own[:-1]] == [span.begun for span in own[1:]]
        assert [span.part for span in own if span.stage == "computing"] == ["forward", "backward", "update"]


@pytest.mark.long
def test_a_rehearsal_takes_the_steps_of_training_over_as_many_epochs_as_it_needs(tmp_path: Path) -> None:
    SmallRun(tmp_path / "a").trainer().fit()
    timing = Timing()
    trainer = SmallRun(tmp_path / "b", observer=timing).with_(epochs=1).trainer()
    assert trainer.rehearse(12) == 12
    fitted, rehearsed = (RunLog(tmp_path / name / "steps.jsonl").records() for name in "ab")
    assert without_seconds(rehearsed) == without_seconds(fitted[:12])
    assert [(step.batch.epoch, step.batch.step) for step in timing.steps] == [divmod(n, 5) for n in range(12)]
    assert not (tmp_path / "b/checkpoints").exists()


def test_a_rehearsal_stops_after_the_update_that_ctrl_c_finds(tmp_path: Path) -> None:
    trainer = SmallRun(tmp_path, observer=Interrupting(1, 2)).trainer()
    handler = signal.getsignal(signal.SIGINT)
    assert trainer.rehearse(100) == 9  # the next one tells of it
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_rehearsal_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps 0: must be at least 1"):
        SmallRun(tmp_path).trainer().rehearse(0)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_block_ends_before_the_interrupt_comes() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            press_ctrl_c()
            done.append("first")
            press_ctrl_c()
            done.append("second")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["first", "second"]


def test_without_an_interrupt_nothing_comes_and_the_handler_is_the_one_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_the_block_goes_before_the_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)

    def fail() -> None:
        with interrupts_held():
            press_ctrl_c()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_ignores_interrupts_keeps_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held():
            press_ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_there_is_nothing_to_hold() -> None:
    handlers = []

    def work() -> None:
        with interrupts_held():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_the_first_interrupt_is_noted_and_the_second_one_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_noted() as noted:
        press_ctrl_c()
        assert noted == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_is_noted_alike() -> None:
    with terminations_raised(), interrupts_noted() as noted:
        signal.raise_signal(signal.SIGTERM)
        assert noted == [signal.SIGTERM]
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outside_the_main_thread_nothing_is_noted() -> None:
    noted: list[list[int]] = []

    def work() -> None:
        with interrupts_noted() as own:
            noted.append(own)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [[]]
