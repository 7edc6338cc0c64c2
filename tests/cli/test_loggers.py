"""`khop train --logger` with the tools themselves: each gets the numbers that the logs of the run have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Ran

Command = Callable[..., Ran]


def epochs_of(run: Path, name: str) -> list[tuple[int, float]]:
    """The update and the value of a number in each epoch of a run."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], record[name]) for record in records]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of mlflow itself
def test_mlflow_has_the_run_with_its_settings_and_numbers(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    store = f"file:{small_run.parent}/mlruns"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    mlflow.set_tracking_uri(store)
    done = khop_command("train", "run.toml", "--out", "a", "--logger", "mlflow")
    assert done.code == 0, done.stderr
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    assert (run.data.params["model.hidden"], run.data.params["training.batch_size"]) == ("16", "64")
    for name in ("loss", "val_accuracy"):
        points = sorted(
            (p.step, p.value) for p in client.get_metric_history(run.info.run_id, f"epoch/{name}")
        )
        assert points == epochs_of(Path("a"), name)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of wandb itself
def test_wandb_keeps_an_offline_run_in_the_run_folder(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    done = khop_command("train", "run.toml", "--out", "a", "--logger", "wandb")
    assert done.code == 0, done.stderr
    assert wandb.run is None, "the run is ended"
    (written,) = Path("a").glob("wandb/offline-run-*/*.wandb")
    content = written.read_bytes()
    for name in (b"model.hidden", b"epoch/val_accuracy", b"step/loss"):
        assert name in content
    assert repr(epochs_of(Path("a"), "val_accuracy")[-1][1]).encode() in content


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_tool_that_is_not_installed_is_refused_before_the_run(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch, logger: str
) -> None:
    monkeypatch.setattr("khop.training.run_loggers.find_spec", lambda name: None)
    done = khop_command("train", "run.toml", "--out", "a", "--logger", logger)
    assert done.code == 2
    assert done.stderr.startswith(
        f"khop: logger is '{logger}': {logger} is not installed: pip install {logger}"
    )
    assert done.stderr.count("\n") == 1
    assert not Path("a").exists()
