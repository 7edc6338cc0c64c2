"""Runs whose times fall along paths, with a model that reads the time between edges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import khop
from cli.conftest import Ran

Command = Callable[..., Ran]


def dated_payments(folder: Path) -> Path:
    """People with dates and labels, and payments between them."""
    numbers = torch.Generator().manual_seed(4)
    columns = {
        "x": torch.randn(60, 4, generator=numbers),
        "y": torch.arange(60) % 2,
        "time": torch.randint(50, 100, (60,), generator=numbers),
    }
    splits = {"train": range(40), "val": range(40, 50), "test": range(50, 60)}
    people = khop.NodeTable(60, columns, splits, num_classes={"y": 2})
    ends = torch.randint(60, (2, 400), generator=numbers)
    paid = khop.EdgeTable(*ends, {"time": torch.randint(100, (400,), generator=numbers)})
    return khop.write_graph(folder, {"person": people}, {"person paid person": paid}, sort_by="time")


@pytest.mark.long
def test_a_run_draws_along_paths_and_reads_elapsed_times(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dated_payments(tmp_path / "graph")
    model = ["--model", "gat", "--heads", "2", "--hidden", "8", "--edge-times", "6"]
    times = ["--time", "time", "--temporal-limit", "edge", "--fanouts", "4,3", "--evaluation-fanouts", "4,3"]
    command = ["train", "--graph", "graph", *model, *times, "--epochs", "2", "--out", "run"]
    done = khop_command(*command)
    assert done.code == 0, done.stderr
    text = (tmp_path / "run" / "config.toml").read_text()
    assert 'temporal_limit = "edge"' in text
    assert "edge_times = 6" in text
    evaluated = khop_command("evaluate", "run")
    assert evaluated.code == 0, evaluated.stderr
    inferred = khop_command("infer", "run", "--out", "out")
    assert inferred.code == 2
    assert "sampler.temporal_limit is 'edge': inference over all neighbors would use" in inferred.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--model", "gat", "--edge-times", "6"], "model.edge_times needs times: set sampler.time"),
        (["--temporal-limit", "node"], "temporal_limit"),
    ],
)
def test_settings_of_times_without_times_are_named(
    khop_command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    dated_payments(tmp_path / "graph")
    done = khop_command("train", "--graph", "graph", *options, "--out", "run")
    assert done.code == 2
    assert complaint in done.stderr.replace("-", "_") or complaint in done.stderr
