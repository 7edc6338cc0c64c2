"""`khop runs` and `khop compare`: the runs of a folder, with what their files say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from cli.conftest import Ran, write_run
from khop.cli.runs import duration
from support.commands import train_here

Command = Callable[..., Ran]


@pytest.fixture(scope="module")
def made(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of other widths, the second one with an epoch less."""
    home = tmp_path_factory.mktemp("two")
    write_run(home, learnable)
    with chdir(home):
        train_here("run.toml", "--out", "runs/a")
        train_here("run.toml", "--hidden", "8", "--epochs", "2", "--out", "runs/b")
    return home


@pytest.fixture
def two_runs(
    khop_command: Command, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, object]]:
    """Scores of these runs, in a working directory with a copy of them."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return [json.loads(khop_command("evaluate", f"runs/{name}", "--json").stdout) for name in "ab"]


@pytest.mark.long
def test_runs_have_the_scores_that_training_said(
    khop_command: Command, two_runs: list[dict[str, object]]
) -> None:
    listed = json.loads(khop_command("runs", "--json").stdout)["runs"]
    assert [each["run"] for each in listed] == ["runs/a", "runs/b"]
    assert [each["epochs"] for each in listed] == [3, 2]
    for run, trained in zip(listed, two_runs, strict=True):
        assert run["scores"]["test_accuracy"] == trained["test_accuracy"]
        assert run["baselines"]["test_accuracy"] == {"majority": trained["test_majority_accuracy"]}
        assert run["state"] == "finished"
        assert run["age_s"] < 600
    shown = khop_command("runs").stdout
    assert "3/3" in shown
    assert "2/2" in shown
    assert f"{two_runs[0]['test_accuracy']:.4f} (majority" in shown
    assert shown.splitlines()[-1] == "khop compare runs/a runs/b"


def test_a_stopped_run_is_resumable_and_a_damaged_one_is_left_out(
    khop_command: Command, two_runs: list[dict[str, object]]
) -> None:
    config = Path("runs/b/config.toml")
    config.write_text(config.read_text().replace("epochs = 2", "epochs = 9"))
    Path("runs/a/metrics.jsonl").write_text("{\n")
    ran = khop_command("runs")
    assert "line 1 is damaged" in ran.stderr
    assert "left out" in ran.stderr
    assert "runs/a" not in ran.stdout
    assert "2/9" in ran.stdout
    assert "resumable" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "khop train --resume runs/b"


def test_a_comparison_has_the_settings_that_differ_and_no_others(
    khop_command: Command, two_runs: list[dict[str, object]]
) -> None:
    compared = json.loads(khop_command("compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["settings"] == {"model.hidden": [16, 8], "training.epochs": [3, 2]}
    (first, _) = compared["runs"]
    assert first["environment"]["processes"] == 1
    assert first["environment"]["peak_memory_bytes"] > 1e7
    assert 0 < first["training_seconds_per_epoch"] <= first["seconds_per_epoch"]
    shown = khop_command("compare", "runs/a", "runs/b").stdout
    assert "model.hidden" in shown
    assert "training.seed" not in shown
    assert f"{two_runs[1]['test_accuracy']:.6g}" in shown


def test_folders_without_runs_and_single_runs_are_told(khop_command: Command, small_run: Path) -> None:
    Path("empty").mkdir()
    assert khop_command("runs", "empty").stdout.startswith("empty: no runs yet")
    assert khop_command("runs", "none").stderr.startswith("khop: none: no such folder")
    assert khop_command("compare", "empty").code == 2
    assert "not a run folder" in khop_command("compare", "empty", "empty").stderr


def test_listing_runs_does_not_import_torch(tmp_path: Path) -> None:
    script = "import sys, khop.cli.runs, khop.cli.runs; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_durations_have_two_units() -> None:
    assert [duration(s) for s in (0.25, 42, 61, 3600, 90_000)] == [
        "0.2 s",
        "42 s",
        "1 min 1 s",
        "1 h",
        "1 d 1 h",
    ]
