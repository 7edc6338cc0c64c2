"""A run folder in short, runs below a folder, and differences between runs."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.run.reporting.run_summary import (
    BASELINES,
    RunState,
    baselines_of,
    differences,
    environment,
    find_runs,
    peak_memory_bytes,
    plain_scores,
    processor,
    run_summary,
)
from khop.training import tasks as baselines

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


def test_differences_are_of_values_and_of_missing_ones() -> None:
    one, other = {"a": 1, "b": {"c": [1, 2], "d": 3}}, {"a": 1, "b": {"c": [1], "d": 3, "e": 4}}
    assert differences([one, other]) == {"b.c": ([1, 2], [1]), "b.e": (None, 4)}
    assert differences([one, one]) == {}


def test_versions_and_the_machine_are_named() -> None:
    found = environment("cpu", 3)
    assert (found["cores"], found["device"]) == (3, "cpu")
    assert str(found["torch"]).startswith(torch.__version__.split("+")[0])


def test_the_processor_has_its_name_or_its_architecture(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nmodel name\t: A CPU: 3 GHz\n")
    assert processor(facts) == "A CPU: 3 GHz"
    assert processor(tmp_path / "none")


@pytest.mark.long
def test_memory_that_was_written_counts_in_the_peak() -> None:
    before = peak_memory_bytes()
    memory = np.empty(before + 8_000_000, np.uint8)
    memory[:: mmap.PAGESIZE] = 1  # a byte of each page is enough
    assert peak_memory_bytes() > before


def test_names_of_baselines_that_stand_apart_from_torch_are_those_of_training() -> None:
    assert set(BASELINES) == set(baselines.BASELINES)


def test_baselines_are_not_scores_of_their_own() -> None:
    record = {
        "epoch": 0,
        "val_mrr": 0.5,
        "val_popularity_mrr": 0.4,
        "test_own_features_mrr": 0.1,
        "test_mrr": 0.3,
    }
    assert plain_scores(record) == {"val_mrr": 0.5, "test_mrr": 0.3}
    assert baselines_of(record)["test_mrr"] == {"test_own_features_mrr": "own features"}


def test_runs_are_found_at_any_depth_and_profiles_are_not_runs(tmp_path: Path) -> None:
    for name in ("b", "a", "more/deep/c", ".hidden/d"):
        write_run(tmp_path / name, 1, None)
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "config.toml").write_text(CONFIG)
    (profile / "steps.jsonl").touch()
    assert [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)] == ["a", "b", "more/deep/c"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]
    with pytest.raises(ValueError, match="no such folder"):
        list(find_runs(tmp_path / "none"))
