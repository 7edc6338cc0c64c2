"""`khop compare`: runs side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Ran

Command = Callable[..., Ran]


@pytest.fixture
def two_runs(khop_command: Command, small_run: Path) -> list[dict[str, object]]:
    """Two runs of other widths, the second one with an epoch less."""
    options = (("runs/a",), ("runs/b", "--hidden", "8", "--epochs", "2"))
    return [json.loads(khop_command("train", "run.toml", "--json", "--out", *of).stdout) for of in options]


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
