"""Evaluations within epochs: they come at exact updates, decide what evaluations decide, and survive a stop.

A run may also end within an epoch, by its number of steps or by a score.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from khop.api.loader import Loader
from khop.batch import Batch
from khop.distributed.processes.group import this_group
from khop.errors import Terminated
from khop.models.sage import SAGE
from khop.training.checkpoint import load_checkpoint
from khop.training.evaluations import EvaluationPlan
from khop.training.optimizer_settings import Plateau, Schedule
from khop.training.run_log import RunLog
from khop.training.settings import CheckpointPolicy, TrainerSettings
from khop.training.step_clock import Unwatched
from khop.training.trainer import Trainer
from khop.training.trainer_state import TrainerState
from support.covered import covered
from support.recorded_runs import late_losses
from support.small_graphs import one_type
from support.small_runs import STEPS, Interrupting, SmallRun, without_seconds
from support.started_ranks import StartedRanks

WITHIN = {"evaluate_every": 0.4}  # after every second update: 2, 4, 6, 8, 10, ...


def due(settings: TrainerSettings, steps: int, count: int) -> list[int]:
    plan = EvaluationPlan.of(settings, steps)
    states = {update: divmod(update, steps) for update in range(1, count + 1)}
    return [u for u, (epoch, step) in states.items() if plan.is_due(TrainerState(epoch=epoch, step=step))]


@given(steps=st.integers(1, 150), every=st.integers(1, 300))
def test_a_number_of_steps_is_exact_as_a_fraction_of_an_epoch(steps: int, every: int) -> None:
    settings = TrainerSettings(epochs=3, evaluate_every=every / steps)
    found = due(settings, steps, 3 * steps)
    assert found == sorted({*range(every, 3 * steps + 1, every), 3 * steps})


def test_evaluations_of_decimal_fractions_are_spread_over_epochs() -> None:
    assert len(due(TrainerSettings(epochs=2, evaluate_every=0.05), 1007, 2014)) == 40
    assert due(TrainerSettings(epochs=2, evaluate_every=0.3), 10, 20) == [3, 6, 9, 12, 15, 18, 20]
    assert due(TrainerSettings(epochs=5, evaluate_every=2), 3, 15) == [6, 12, 15]
    assert due(TrainerSettings(epochs=1, evaluate_every=1e-8), 5, 5) == [1, 2, 3, 4, 5]
    assert due(TrainerSettings(epochs=4, evaluate_every=1.5), 4, 16) == [6, 12, 16]
    assert due(TrainerSettings(epochs=4, max_steps=7), 4, 7) == [4, 7]


def logged(out: Path) -> list[dict[str, object]]:
    """The lines of steps.jsonl without times."""
    return without_seconds(RunLog(out / "steps.jsonl").records())  # type: ignore[return-value]


def assert_equal_runs(found: Path, expected: Path) -> None:
    """Equal logs but for times, and equal bits in the last and in the best checkpoint."""
    for name in ("steps", "metrics"):
        lines = [without_seconds(RunLog(run / f"{name}.jsonl").records()) for run in (found, expected)]
        assert lines[0] == lines[1], name
    for name in ("last", "best"):
        ours, theirs = (load_checkpoint(run / "checkpoints" / name) for run in (found, expected))
        assert ours.model.keys() == theirs.model.keys()
        assert all(torch.equal(ours.model[each], theirs.model[each]) for each in ours.model), name
        assert all(torch.equal(ours.optimizer[each], theirs.optimizer[each]) for each in ours.optimizer)
        assert ours.groups == theirs.groups
        assert without_seconds(list(ours.records)) == without_seconds(list(theirs.records))


def test_scores_within_an_epoch_are_in_the_log_of_steps_and_do_not_change_the_course(tmp_path: Path) -> None:
    within = SmallRun(tmp_path / "within").with_(**WITHIN).trainer().fit()
    plain = SmallRun(tmp_path / "plain").trainer().fit()
    assert without_seconds(within.records) == without_seconds(
        [record if record["epoch"] == 1 else scoreless(record) for record in plain.records[:2]]
    ) + without_seconds(plain.records[2:])
    lines = logged(tmp_path / "within")
    assert [line for line in lines if "loss" in line] == logged(tmp_path / "plain")
    evaluations = [(line["epoch"], line["step"], line["epochs"]) for line in lines if "loss" not in line]
    assert evaluations == [(0, 1, 0.4), (0, 3, 0.8), (1, 0, 1.2), (1, 2, 1.6), (2, 1, 2.4), (2, 3, 2.8)]
    assert evaluations == [(each["epoch"], each["step"], each["epochs"]) for each in within.evaluations]
    at = lines.index(next(line for line in lines if "loss" not in line))
    assert (lines[at - 1]["epoch"], lines[at - 1]["step"]) == (0, 1)  # the line follows that of its update
    assert {"val_accuracy", "train_accuracy"} < lines[at].keys()


def scoreless(record: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in record.items() if "accuracy" not in name}


def scripted(run: SmallRun, scores: list[float]) -> Trainer:
    """A trainer whose evaluations have these scores, one after the other."""
    given = iter(scores)
    return replace(run, evaluate=lambda: {"val": next(given)}).trainer()


def test_the_best_checkpoints_are_those_of_evaluations(tmp_path: Path) -> None:
    policy = CheckpointPolicy(best=3)
    trainer = scripted(
        SmallRun(tmp_path).with_(epochs=2, checkpoints=policy, **WITHIN), [0.1, 0.7, 0.6, 0.9, 0.2]
    )
    result = trainer.fit()  # after the updates 2, 4, 6, 8 and 10
    assert (result.best_epoch, result.best_score) == (1, 0.9)
    assert (result.best["epoch"], result.best["step"], result.best["val_accuracy"]) == (1, 2, 0.9)
    kept = [
        load_checkpoint(tmp_path / "checkpoints" / name).training for name in ("best", "best-1", "best-2")
    ]
    assert [(state["epoch"], state["step"]) for state in kept] == [(1, 3), (0, 4), (1, 1)]


def test_patience_counts_evaluations_within_epochs(tmp_path: Path) -> None:
    result = scripted(SmallRun(tmp_path).with_(patience=2, **WITHIN), [0.5, 0.6, 0.4, 0.5]).fit()
    assert [(record["epoch"], record["step"], record.get("epochs")) for record in result.records] == [
        (0, 5, None),
        (1, 8, 1.6),  # ended after update 8
    ]
    assert result.records[-1]["val_accuracy"] == 0.5
    assert (result.best_epoch, result.best["step"]) == (0, 3)


def test_a_plateau_counts_evaluations_within_epochs(tmp_path: Path) -> None:
    schedule = Schedule(plateau=Plateau(factor=0.5, patience=2))
    run = SmallRun(tmp_path).with_(epochs=2, schedule=schedule, **WITHIN)
    trainer = scripted(run, [0.5, 0.4, 0.4, 0.4, 0.4])  # two reductions: after the updates 6 and 10
    rates: list[float] = []
    step = trainer.optimizer.step

    def stepped() -> None:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        step()

    trainer.optimizer.step = stepped  # type: ignore[method-assign]
    trainer.fit()
    assert rates == [0.01] * 6 + [0.005] * 4
    assert trainer.state.plateau_scale == 0.25


@pytest.mark.long
def test_a_run_of_some_steps_ends_within_an_epoch_and_can_be_continued_exactly(tmp_path: Path) -> None:
    expected = SmallRun(tmp_path / "undisturbed").with_(evaluate_every=0.2).trainer().fit()
    run = SmallRun(tmp_path / "run").with_(evaluate_every=0.2)
    short = run.with_(max_steps=7).trainer().fit()
    assert short.records[0]["step"] == 5
    assert (short.records[1]["step"], short.records[1]["epochs"]) == (7, 1.4)
    seven = [line for line in logged(tmp_path / "undisturbed") if (line["epoch"], line["step"]) == (1, 1)]
    assert short.records[1]["val_accuracy"] == seven[1]["val_accuracy"]
    assert load_checkpoint(tmp_path / "run/checkpoints/last").training["is_finished"] is True

    again = run.with_(max_steps=7).trainer()
    again.resume()
    assert again.fit().records == short.records  # over: there is nothing left to do

    longer = run.trainer()
    longer.resume()
    assert without_seconds(longer.fit().records) == without_seconds(expected.records)
    assert_equal_runs(tmp_path / "run", tmp_path / "undisturbed")


def test_the_schedule_of_a_run_ends_with_its_steps(tmp_path: Path) -> None:
    trainer = SmallRun(tmp_path).with_(max_steps=4, schedule=Schedule("linear")).trainer()
    trainer.fit()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0
    assert trainer.state.updates(STEPS) == 4


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("scores", "updates"), [([0.1, 0.5, 0.7, 0.9], 6), ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65], 14)]
)
def test_training_stops_at_the_first_evaluation_that_reaches_the_target(
    tmp_path: Path, scores: list[float], updates: int
) -> None:
    run = SmallRun(tmp_path).with_(target=("accuracy", 0.65), **WITHIN)
    trainer = scripted(run, [*scores, 0.0, 0.0])
    result = trainer.fit()
    assert trainer.state.updates(STEPS) == updates
    assert result.records[-1]["step"] == updates
    again = run.trainer()
    again.resume()
    assert again.fit().records == result.records


def test_a_target_at_the_end_of_an_epoch_stops_there_and_lower_may_be_better(tmp_path: Path) -> None:
    errors = iter([0.5, 0.3, 0.1])
    run = SmallRun(tmp_path, evaluate=lambda: {"val": 0.5, "val/rmse": next(errors)})
    trainer = run.with_(target=("rmse", 0.3)).trainer()
    assert len(trainer.fit().records) == 2
    assert trainer.state.is_finished


def test_a_target_of_an_unknown_metric_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, evaluate=lambda: {"val": 0.5}).with_(target=("mrr", 0.3), evaluate_every=0.2)
    with pytest.raises(
        ValueError, match=r"target \('mrr', 0.3\): the evaluation does not compute val_mrr, only val_acc"
    ):
        run.trainer().fit()
    assert len(RunLog(tmp_path / "steps.jsonl").records()) == 1


@dataclass
class Stopping(Unwatched):
    """Presses Ctrl-C when the evaluation at this place has ended, and keeps what it is told."""

    at: tuple[int, int] | None = None
    told: list[tuple[object, object]] = field(default_factory=list)

    def evaluated(self, record: Mapping[str, object]) -> None:
        self.told.append((record["epoch"], record["step"]))
        if self.told[-1] == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with evaluations within epochs, and a learning rate that depends on them."""
    out: Path = tmp_path_factory.mktemp("undisturbed")
    sensitive(out).trainer().fit()
    return out


def sensitive(out: Path, **settings: object) -> SmallRun:
    """A run whose learning rate falls with each evaluation that is not the best."""
    schedule = Schedule(plateau=Plateau(factor=0.7, patience=1))
    return SmallRun(out).with_(schedule=schedule, **WITHIN, **settings)


@pytest.mark.long
@pytest.mark.parametrize(
    "observer",
    [
        Interrupting(0, 3),  # after the update, before its evaluation
        Interrupting(1, 1, signal.SIGTERM),  # between two evaluations
        Interrupting(1, STEPS - 1),  # before the evaluation at the end of the epoch
        Stopping((1, 2)),  # after an evaluation, with updates left in the epoch
        Stopping((2, 3)),
    ],
    ids=repr,
)
def test_a_stop_around_an_evaluation_loses_and_repeats_nothing(
    tmp_path: Path, undisturbed: Path, observer: Unwatched
) -> None:
    with pytest.raises((KeyboardInterrupt, Terminated)):
        replace(sensitive(tmp_path), observer=observer).trainer().fit()
    watching = Stopping()
    trainer = replace(sensitive(tmp_path), observer=watching, threads=1).trainer()
    trainer.resume()
    trainer.fit()
    assert_equal_runs(tmp_path, undisturbed)
    before = observer.told if isinstance(observer, Stopping) else []
    assert len({*before, *watching.told}) == len(before) + len(watching.told)


def test_ctrl_c_in_an_evaluation_within_an_epoch_repeats_it(tmp_path: Path, undisturbed: Path) -> None:
    trainer = sensitive(tmp_path).trainer()
    evaluate = trainer.evaluate

    def interrupted() -> Mapping[str, float]:
        if trainer.state.updates(STEPS) == 6:
            raise KeyboardInterrupt
        return evaluate()

    trainer.evaluate = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    again = sensitive(tmp_path).trainer()
    again.resume()
    again.fit()
    assert_equal_runs(tmp_path, undisturbed)


@pytest.mark.long
def test_an_evaluation_waits_for_the_losses_of_a_device(tmp_path: Path, undisturbed: Path) -> None:
    with late_losses():
        sensitive(tmp_path).trainer().fit()
    assert_equal_runs(tmp_path, undisturbed)


KILLED = """
import os, signal, sys
from pathlib import Path
from khop.training.settings import CheckpointPolicy
from training.test_evaluations import Stopping, sensitive
from dataclasses import replace

class Killed(Stopping):
    def stepped(self, epoch, step, loss):
        if (epoch, step) == (1, 3):  # after the evaluation of step 2
            os.kill(os.getpid(), signal.SIGKILL)

run = sensitive(Path(sys.argv[1]), checkpoints=CheckpointPolicy(steps=1))
replace(run, observer=Killed()).trainer().fit()
"""


@pytest.mark.long
def test_a_run_killed_between_an_evaluation_and_the_end_of_the_epoch_is_continued(
    tmp_path: Path, undisturbed: Path
) -> None:
    tests = str(Path(__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    trainer = sensitive(tmp_path).trainer()
    trainer.resume()
    assert trainer.state.step > 0
    trainer.fit()
    assert_equal_runs(tmp_path, undisturbed)


def test_lines_of_evaluations_come_back_from_the_checkpoint(tmp_path: Path) -> None:
    run = SmallRun(tmp_path).with_(**WITHIN)
    run.trainer().fit()
    before = (tmp_path / "steps.jsonl").read_bytes()
    kept = [line for line in before.splitlines(keepends=True) if b'"epochs"' not in line]
    surplus = json.dumps({"epoch": 0, "step": 2, "epochs": 0.6, "val_accuracy": 1.0}).encode() + b"\n"
    (tmp_path / "steps.jsonl").write_bytes(b"".join([*kept[:3], surplus, *kept[3:]]))
    trainer = run.trainer()
    trainer.resume()
    trainer.fit()
    assert (tmp_path / "steps.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate_every": 0}, "evaluate_every 0: must be positive"),
        ({"evaluate_every": float("nan")}, "evaluate_every nan: must be positive"),
        ({"max_steps": 0}, "max_steps 0: must be at least 1, or None for no limit"),
        ({"target": 0.7}, "target 0.7: must be a metric and a score"),
        ({"target": ("", 0.7)}, r"target \('', 0.7\): must be a metric and a score"),
        ({"target": ("accuracy", "high")}, "target 'high': must be a number"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerSettings(epochs=2, **settings)  # type: ignore[arg-type]


class _Normed(nn.Module):
    """SAGE with batch normalization of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SAGE.for_graph(one_type().store, 16)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, batch: Batch) -> Tensor:
        outputs: Tensor = self.norm(self.inner(batch))
        return outputs


@covered
def _train_normed(rank: int, device: str, out: Path) -> None:
    """Compare the statistics of all ranks in each evaluation, and before an epoch."""
    group, model = this_group(), _Normed()
    seen = []

    def compare(*_: int) -> Mapping[str, float]:
        found = group.gather(model.get_buffer("norm.running_mean"))
        assert found[0].equal(found[1])
        seen.append(found[0])
        return {"val": 0.5}

    run = SmallRun(out, evaluate=compare, model=lambda: model).with_(epochs=2, evaluate_every=2)
    trainer = run.trainer()
    trainer._before_epoch = compare  # type: ignore[assignment]
    trainer.fit()
    assert len(seen) == 3
    assert not seen[0].equal(seen[1])
    if rank == 0:
        assert load_checkpoint(out / "checkpoints/last").model["norm.running_mean"].equal(seen[-1])


def test_ranks_evaluate_with_the_statistics_that_a_checkpoint_has(
    ranks: StartedRanks, tmp_path: Path
) -> None:
    ranks.launch(_train_normed, 2, (tmp_path / "run",))


# On several ranks, all go by the scores of rank 0, which are those of every rank.

SCORES_OF_RANKS: dict[str, list[dict[str, float]]] = {
    "other": [{"val": 0.5, "test": 0.25}, {"val": 0.5, "test": 0.75}],
    "missing": [{"val": 0.5, "test": 0.25}, {"val": 0.5}],
    "nan": [{"val": 0.5}, {"val": float("nan")}],
    "rounding": [{"val": 0.5, "test": 0.25}, {"val": 0.5 + 1e-7, "test": 0.25}],
}


@covered
def _evaluated_on_ranks(rank: int, device: str, out: str, case: str) -> None:
    """Train with scores that depend on the rank; write the error, or the best score and the rates."""
    run = SmallRun(Path(out) / case, evaluate=lambda: SCORES_OF_RANKS[case][rank], threads=1)
    trainer = run.with_(schedule=Schedule(plateau=Plateau(0.5, 1))).trainer()
    try:
        found: object = (trainer.fit().best_score, trainer.optimizer.param_groups[0]["lr"])
    except ValueError as error:
        found = str(error)
    (Path(out) / f"{case} {rank}").write_text(json.dumps(found))


def test_scores_that_depend_on_the_rank_are_refused(tmp_path: Path, ranks: StartedRanks) -> None:
    found = {}
    for case in SCORES_OF_RANKS:
        ranks.launch(_evaluated_on_ranks, 2, (str(tmp_path), case))
        of_zero, found[case] = (json.loads((tmp_path / f"{case} {rank}").read_text()) for rank in range(2))
        assert of_zero == found[case]
    assert found["rounding"] == [0.5, 0.01 * 0.5**2]
    assert "returned different scores on the ranks: 'test' 0.25 on rank 0, 0.75 on rank 1. " in found["other"]
    assert "returned the score 'val' nan: must be finite" in found["nan"]
    assert "'test' 0.25 on rank 0, missing on rank 1. Every rank must return the same" in found["missing"]


@covered
def _decayed_on_ranks(rank: int, device: str, out: str) -> None:
    """Begin a run with a weight decay that depends on the rank; write the error."""
    run = SmallRun(Path(out) / "run", threads=1).with_(weight_decay=0.1 * rank)
    with pytest.raises(ValueError, match="different settings") as refused:
        run.trainer().fit()
    (Path(out) / str(rank)).write_text(str(refused.value))


def test_a_weight_decay_that_depends_on_the_rank_is_refused(tmp_path: Path, ranks: StartedRanks) -> None:
    ranks.launch(_decayed_on_ranks, 2, (str(tmp_path),))
    assert all(
        "weight decay is 0.1 on rank 1, 0.0 on rank 0" in (tmp_path / str(n)).read_text() for n in (0, 1)
    )


@pytest.mark.parametrize(
    "scores",
    [
        [torch.tensor(0.5), torch.tensor(0.75, dtype=torch.float64)],
        [np.float32(0.5), np.array(0.75)],
        [0, np.int64(1)],
    ],
    ids=str,
)
def test_a_score_is_any_number_without_dimensions(tmp_path: Path, scores: Sequence[Any]) -> None:
    given = iter(scores)
    run = SmallRun(tmp_path, evaluate=lambda: {"val": next(given), "other": next(given)})
    result = run.with_(epochs=1).trainer().fit()
    assert result.best_score == float(scores[0])
    (line,) = RunLog(tmp_path / "metrics.jsonl").records()
    assert [line["val_accuracy"], line["other_accuracy"]] == [float(each) for each in scores]


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ({"val": float("nan")}, f"the evaluation at epoch 0, step {STEPS}: .* 'val' nan: must be finite"),
        ({"val": 0.5, "test": float("inf")}, "the score 'test' inf: must be finite; leave it out if it is"),
        ({"val": None}, "the score 'val' None: must be a number, or a tensor"),
        ({"val": "0.5"}, "the score 'val' '0.5': must be a number"),
        (
            {"val": torch.ones(1)},
            r"the score 'val' tensor\(\[1.\]\): must be a number, or a tensor or an array w",
        ),
        (0.5, "returned 0.5: must be a mapping from names to scores"),
    ],
    ids=str,
)
def test_other_scores_are_named(tmp_path: Path, scores: Any, sentence: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=sentence):
        SmallRun(tmp_path, evaluate=lambda: scores).with_(epochs=1).trainer().fit()


@dataclass(frozen=True)
class Counted:
    """A loader whose batches have a count of a cache on rank 1 alone."""

    loader: Loader
    rank: int

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        counts = {"device_cache_rows": 3.0} if self.rank else {}
        return (replace(batch, traffic=counts) for batch in self.loader.epoch(epoch))

    def state_dict(self) -> dict[str, object]:
        return self.loader.state_dict()


@covered
def _stopped_on_ranks(rank: int, device: str, out: str, epoch: int) -> None:
    """Get SIGTERM in an evaluation on rank 1, as ranks of sharded embeddings that end together."""

    def evaluate() -> dict[str, float]:
        if trainer._output.writer is not None and trainer.state.epoch == 0:
            trainer._output.writer._wait()
            last = load_checkpoint(Path(out) / "checkpoints" / "last").training
            assert (last["epoch"], last["step"]) == (0, STEPS)  # saved before the first evaluation
        if rank == 1 and trainer.state.epoch == epoch:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"val": 0.5}

    trainer = SmallRun(Path(out), evaluate=evaluate, threads=1).with_(epochs=2).trainer()
    trainer.loader = Counted(trainer.loader, rank)  # type: ignore[assignment, arg-type]
    trainer._output.is_sharded = True
    with pytest.raises(Terminated):
        trainer.fit()
    assert trainer.state.epoch == epoch + 1


@pytest.mark.parametrize("epoch", [0, 1])
def test_ranks_that_end_together_do_so_after_the_evaluation(
    tmp_path: Path, ranks: StartedRanks, epoch: int
) -> None:
    """Also after the last one, and although a rank has counts that another one lacks."""
    ranks.launch(_stopped_on_ranks, 2, (str(tmp_path), epoch))
    assert load_checkpoint(tmp_path / "checkpoints" / "last").training["epoch"] == epoch + 1
    first = json.loads((tmp_path / "steps.jsonl").read_text().partition("\n")[0])
    assert first["traffic"] == {"device_cache_rows": [0, 3]}
