"""The command as a process of its own: what a shell, a script and a full disk see."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import khop
from cli.conftest import Ran
from cli.test_train import metrics_of
from support.gate import WAIT_S, wait_until

KHOP = [sys.executable, "-m", "khop"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(khop.__file__).parents[1])}


def process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


@pytest.mark.long
def test_a_script_reads_the_last_line_of_stdout(small_run: Path) -> None:
    done = process(*KHOP, "train", "run.toml", "--json")
    assert done.returncode == 0
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert {"run", "epochs", "seconds", "train_accuracy", "val_accuracy", "test_accuracy"} <= set(outcome)
    assert len(done.stdout.splitlines()) == 1
    assert "\x1b" not in done.stderr  # no terminal, no bars


@pytest.mark.long
def test_ctrl_c_keeps_the_last_checkpoint_and_the_run_continues_exactly(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    command = [*KHOP, "train", "run.toml", "--epochs", "100000", "--out", "a"]
    pipe = subprocess.PIPE
    training = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)
    log = Path("a/metrics.jsonl")
    wait_until(lambda: log.exists() and bool(log.read_text()))
    training.send_signal(signal.SIGINT)
    _, errors = training.communicate(timeout=WAIT_S)
    assert training.returncode == 130
    assert errors == (
        "khop: stopped; the last checkpoint is a/checkpoints/last; continue with: khop train --resume a\n"
    )
    assert [path for path in Path("a").rglob("*") if path.name.startswith(".")] == []
    epochs = str(len(metrics_of("a")) + 2)
    khop_command("train", "--resume", "a", "--epochs", epochs)
    khop_command("train", "run.toml", "--out", "b", "--epochs", epochs)
    assert metrics_of("a") == metrics_of("b")


@pytest.mark.long
def test_a_disk_without_space_is_reported_and_nothing_is_half_written(small_run: Path) -> None:
    program = (
        "import resource, sys; from khop.cli.main import run; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)); run(sys.argv[1:])"
    )
    done = process(sys.executable, "-c", program, "train", "run.toml", "--out", "a", "--hidden", "64")
    assert done.returncode == 1
    *warnings, last = done.stderr.splitlines()
    assert warnings
    assert all(
        line.startswith("khop: a/checkpoints/") and line.endswith("; the run continues") for line in warnings
    )
    assert last.startswith("khop: a/checkpoints/")
    assert "File too large: the checkpoint could not be written" in last
    files = [path.name for path in Path("a").rglob("*") if path.is_file()]
    assert sorted(files) == ["config.toml", "environment.json", "metrics.jsonl", "steps.jsonl"]
    assert json.loads(Path("a/environment.json").read_text())["processes"] == 1


@pytest.mark.long
def test_an_import_on_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text("a,b\n" + "".join(f"x{n},y{n % 97}\n" for n in range(9000)))
    Path("spec.toml").write_text(
        '[nodes.a]\n[nodes.b]\n[edges."a to b"]\nfiles = ["edges.csv"]\nsource = "a"\ndestination = "b"\n'
    )
    program = (
        "import resource, sys; from khop.cli.main import run; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000)); run(sys.argv[1:])"
    )
    done = process(sys.executable, "-c", program, "import", "spec.toml", "out")
    assert done.returncode == 1
    assert re.fullmatch(
        r"khop: out: no space for the file \S+ \(File too large\); nothing was left behind. "
        r"Free some space or write to another disk\n",
        done.stderr,
    ), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "spec.toml"]


def test_a_place_where_nothing_can_be_written_is_one_line(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    done = khop_command("train", "run.toml", "--out", "/proc/khop/a")
    assert done.code == 1
    assert done.stderr.startswith("khop: /proc/khop")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_ranks_measure_the_checkpoint_that_rank_0_found_whole(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    khop_command("train", "run.toml", "--out", "a")
    state = Path("a/checkpoints/last/state.json")
    state.write_text(state.read_text().replace('"epoch": 3', '"epoch": 2'))
    measure = ("evaluate", "a", "--checkpoint", "last", "--json")
    alone, together = process(*KHOP, *measure), process(*KHOP, *measure, "--procs", "2")
    assert alone.returncode == together.returncode == 0
    assert json.loads(alone.stdout) == json.loads(together.stdout)
    warning = f"khop: {state}: cut short or damaged; a/checkpoints/last-1 is used instead"
    assert [ran.stderr.count(warning) for ran in (alone, together)] == [1, 1]
