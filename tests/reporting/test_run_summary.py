"""A run folder in short, read from the files that training leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from khop.reporting.run_summary import RunState, run_summary

CONFIG = """graph = "graphs/shop"
[training]
epochs = 3
patience = 2
[model]
kind = "sage"
layers = 2
hidden = 16
"""


def write_run(folder: Path, epochs: int, state: dict[str, object] | None) -> Path:
    """Write a run of some epochs, whose score rises; without a state it has no checkpoint."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    records = [
        {"epoch": at, "step": 2 * at + 2, "loss": 1 / (at + 1), "val_accuracy": 0.5 + 0.1 * at,
         "val_majority_accuracy": 0.3, "test_accuracy": 0.4, "seconds": {"evaluating": 0.5, "total": 2.0}}
        for at in range(epochs)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    if state is not None:
        last = folder / "checkpoints" / "last"
        last.mkdir(parents=True)
        (last / "state.json").write_text(json.dumps({"format": 2, "training": state}))
    return folder


def test_scores_are_of_the_best_epoch_with_baselines_apart(tmp_path: Path) -> None:
    run = run_summary(write_run(tmp_path / "a", 3, {"epoch": 3, "best_epoch": 1, "stale": 1}))
    assert run.scores == {"val_accuracy": 0.6, "test_accuracy": 0.4}
    assert run.baselines == {"val_accuracy": {"majority": 0.3}}
    assert (run.metric, run.graph, run.model, run.seconds) == ("accuracy", "shop", "sage 2 x 16", 6.0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, RunState.STARTED),
        ({"epoch": 2, "stale": 1}, RunState.RESUMABLE),
        ({"epoch": 2, "stale": 2}, RunState.FINISHED),  # out of patience
        ({"epoch": 3, "stale": 0}, RunState.FINISHED),
    ],
)
def test_the_state_follows_from_epochs_and_patience(
    tmp_path: Path, state: dict[str, object] | None, expected: RunState
) -> None:
    assert run_summary(write_run(tmp_path / "a", 2, state)).state is expected


def test_a_run_before_its_first_epoch_has_no_scores(tmp_path: Path) -> None:
    run = run_summary(write_run(tmp_path / "a", 0, None))
    assert (run.scores, run.baselines, run.metric, run.seconds) == ({}, {}, "", 0)


def test_the_age_counts_from_the_last_write(tmp_path: Path) -> None:
    run = run_summary(write_run(tmp_path / "a", 1, None))
    assert run.age_s(run.changed_at + 60) == 60
    assert run.age_s(run.changed_at - 60) == 0  # of a clock that is behind


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 1, {"epoch": 1})
    with pytest.raises(ValueError, match="not a run folder"):
        run_summary(tmp_path)
    (folder / "checkpoints" / "last" / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state\.json: cut short or damaged"):
        run_summary(folder)
