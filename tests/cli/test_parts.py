"""Commands on a folder of parts: the numbers of the graph before it was cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Ran

Command = Callable[..., Ran]


def epochs_of(run: str) -> list[dict[str, float]]:
    records = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


@pytest.fixture
def parts(khop_command: Command, small_run: Path, learnable: Path) -> str:
    khop_command("partition", str(learnable), "parts", "--parts", "3")
    return "parts"


@pytest.mark.long
def test_a_run_is_trained_measured_inferred_and_profiled(khop_command: Command, parts: str) -> None:
    khop_command("train", "run.toml", "--out", "whole", "--epochs", "1")
    assert khop_command("train", "run.toml", "--graph", parts, "--out", "cut", "--epochs", "1").code == 0
    assert epochs_of("cut") == epochs_of("whole")
    scores = [
        json.loads(khop_command("evaluate", run, "--split", "test", "--json").stdout)["test_accuracy"]
        for run in ("whole", "cut")
    ]
    assert scores[0] == scores[1]
    for run in ("whole", "cut"):
        assert khop_command("infer", run, "--out", f"{run}.npy").code == 0
    originals = np.load("parts/nodes/item/original_id.npy")
    rows, rows_of_parts = np.load("whole.npy"), np.load("cut.npy")
    np.testing.assert_allclose(rows_of_parts, rows[originals], rtol=1e-5, atol=1e-6)
    assert khop_command("profile", "run.toml", "--graph", parts, "--steps", "2").code == 0


@pytest.mark.long
def test_a_run_on_parts_continues_where_it_was(khop_command: Command, parts: str) -> None:
    khop_command("train", "run.toml", "--graph", parts, "--out", "a", "--epochs", "1")
    assert khop_command("train", "--resume", "a", "--epochs", "2").code == 0
    khop_command("train", "run.toml", "--graph", parts, "--out", "b", "--epochs", "2")
    assert epochs_of("a") == epochs_of("b")


def test_commands_about_one_folder_say_what_to_give_them_instead(khop_command: Command, parts: str) -> None:
    ran = khop_command("partition", parts, "again", "--parts", "2")
    assert ran.code != 0
    assert "is a partitioned graph; give the graph before partitioning, or one of" in ran.stderr


def test_a_part_that_is_missing_is_said_before_anything_is_made(khop_command: Command, parts: str) -> None:
    Path("parts/part-0001").rename("elsewhere")
    ran = khop_command("train", "run.toml", "--graph", parts, "--out", "a")
    assert ran.code != 0
    assert "part 1 of 3 is not on this machine: there is no part-0001" in ran.stderr


@pytest.mark.long
def test_a_run_file_with_caches_trains_on_one_process_and_says_that_they_have_no_effect(
    small_run: Path,
) -> None:
    small_run.write_text(small_run.read_text() + 'gpu = { cache = "1kB" }\nparts = { cache_bytes = "1MB" }\n')
    finished = subprocess.run(
        [sys.executable, "-m", "khop", "train", "run.toml", "--epochs", "1", "--out", "cached"],
        cwd=small_run.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    told = [line for line in finished.stderr.splitlines() if "has no effect" in line]
    assert len(told) == 1
    assert told[0].startswith(
        "khop: a cache for rows of other processes or on disk, of 1,000,000 bytes in host memory and 1,000 on"
    )
    assert "Warning" not in finished.stderr
    assert (small_run.parent / "cached" / "metrics.jsonl").exists()
