"""Loggers get the losses of updates and the numbers of epochs, as the logs of the run have them.

What TensorBoard itself reads from a run's event files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from khop.training.run_loggers import (
    MlflowLog,
    TensorBoard,
    WandbLog,
    _NumberLog,
    check_logger,
    check_tensorboard,
)
from khop.training.step_clock import STAGES
from support.small_runs import STEPS, SmallRun


class Noted(_NumberLog):
    """Keeps what a tool would be given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, dict[str, float]]] = []

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self.seen.append((update, dict(numbers)))


def expected(run: Path) -> list[tuple[int, dict[str, float]]]:
    """The numbers in the logs of a run: of updates from 1, and of each epoch after its last update."""
    steps, epochs = (
        [json.loads(line) for line in (run / name).read_text().splitlines()]
        for name in ("steps.jsonl", "metrics.jsonl")
    )
    found = [(number, {"step/loss": record["loss"]}) for number, record in enumerate(steps, 1)]
    for record in epochs:
        numbers = {
            k: v for k, v in record.items() if isinstance(v, int | float) and k not in ("epoch", "step")
        }
        place = max(at for at, (update, _) in enumerate(found) if update == record["step"]) + 1
        found.insert(place, (record["step"], {f"epoch/{name}": value for name, value in numbers.items()}))
    return found


def test_losses_and_scores_are_those_of_the_logs(tmp_path: Path) -> None:
    noted = Noted()
    SmallRun(tmp_path, observer=noted).trainer().fit()
    assert noted.seen == expected(tmp_path)


def test_a_tool_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.training.run_loggers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="wandb is not installed: pip install wandb"):
        WandbLog()
    with pytest.raises(ValueError, match="mlflow is not installed: pip install mlflow-skinny"):
        MlflowLog()
    with pytest.raises(ValueError, match="logger 'comet': must be one of wandb, mlflow"):
        check_logger("comet")  # type: ignore[arg-type]
    assert {"wandb", "mlflow"} & set(sys.modules) <= {"wandb", "mlflow"}


@pytest.mark.long
def test_mlflow_reads_the_numbers_and_settings_from_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    mlflow.set_tracking_uri(f"file:{tmp_path}/mlruns")
    with closing(MlflowLog({"model.hidden": 16}, {"run_name": "one"})) as log:
        SmallRun(tmp_path / "run", observer=log).trainer().fit()
    client = mlflow.MlflowClient(f"file:{tmp_path}/mlruns")
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.data.params) == ("one", {"model.hidden": "16"})
    for name in ("step/loss", "epoch/loss", "epoch/val_accuracy"):
        points = sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, name))
        assert points == [(update, of[name]) for update, of in expected(tmp_path / "run") if name in of]
    assert mlflow.active_run() is None


@pytest.mark.long
def test_wandb_keeps_an_offline_run_of_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.chdir(tmp_path)
    options = {"mode": "offline", "dir": str(tmp_path), "project": "test"}
    with closing(WandbLog({"model.hidden": 16}, options)) as log:
        run = wandb.run
        SmallRun(tmp_path / "run", observer=log).trainer().fit()
        assert run.config["model.hidden"] == 16
        summary = {name: run.summary[name] for name in ("epoch/loss", "epoch/val_accuracy")}
    for name, value in summary.items():  # wandb counts the last update in a thread of its own
        assert value in [of[name] for _, of in expected(tmp_path / "run") if name in of]
    assert wandb.run is None
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def curves(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def points(read: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read.Scalars(name)]


def test_curves_are_those_of_the_logs(tmp_path: Path) -> None:
    with closing(TensorBoard(tmp_path / "curves", 'graph = "toy"')) as observer:
        SmallRun(tmp_path, observer=observer).trainer().fit()
    read = curves(tmp_path / "curves")
    steps, epochs = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("steps.jsonl", "metrics.jsonl")
    )
    assert points(read, "step/loss") == [
        (number, pytest.approx(record["loss"], rel=1e-6)) for number, record in enumerate(steps, 1)
    ]
    for name in ("loss", "val_accuracy", "train_accuracy"):
        assert points(read, f"epoch/{name}") == [
            (record["step"], pytest.approx(record[name], rel=1e-6)) for record in epochs
        ]
    for stage in STAGES:
        assert [step for step, _ in points(read, f"seconds/{stage}")] == list(range(1, 3 * STEPS + 1))
    (text,) = read.Tensors("config/text_summary")
    assert b'graph = "toy"' in text.tensor_proto.string_val[0]


def test_a_run_that_continues_shows_every_update_once(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        SmallRun(tmp_path, observer=observer).with_(epochs=2).trainer().fit()
        observer.stepped(2, 0, 9.0)  # an update after the last checkpoint: killed, and made again
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        again = SmallRun(run.out, observer=observer).trainer()
        again.resume()
        again.fit()
    read = curves(tmp_path / "curves")
    assert [step for step, _ in points(read, "step/loss")] == list(range(1, 3 * STEPS + 1))
    assert 9.0 not in [loss for _, loss in points(read, "step/loss")]
    assert [step for step, _ in points(read, "epoch/loss")] == [5, 10, 15]


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        observer.started(1, 5)
    assert not (tmp_path / "curves").exists()


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tensorboard()
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "tensorboard")
    with pytest.raises(ValueError, match=r"not installed: pip install tensorboard$"):
        check_tensorboard()
