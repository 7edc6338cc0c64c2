"""`--baselines`: a model of own features, trained in the run's folder, beside each score."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from khop.cli.baselines import label_propagation_scores
from khop.config.build import prepare
from khop.config.read import read_toml

from .conftest import Ran

Command = Callable[..., Ran]
OWN = Path("a/baselines/own-features")


def own_scores(outcome: dict[str, object]) -> dict[str, object]:
    return {name: score for name, score in outcome.items() if "_own_features_" in name}


def test_training_shows_the_scores_of_own_features_beside_each_score(
    khop_command: Command, small_run: Path
) -> None:
    ran = khop_command("train", "run.toml", "--out", "a", "--baselines", "--json")
    assert ran.code == 0, ran.stderr
    found = own_scores(json.loads(ran.stdout))
    assert list(found) == [f"{split}_own_features_accuracy" for split in ("train", "val", "test")]
    spread = json.loads(ran.stdout)["test_label_propagation_accuracy"]
    shown = f"own features {found['test_own_features_accuracy']:.4g}, label propagation {spread:.4g})"
    assert shown in ran.stderr
    again = khop_command("evaluate", "a", "--split", "all", "--baselines", "--json", "--metric", "f1-micro")
    measured = own_scores(json.loads(again.stdout))
    assert measured.items() >= found.items()
    assert measured["test_own_features_f1_micro"] == found["test_own_features_accuracy"]


def test_an_evaluation_trains_it_once(khop_command: Command, small_run: Path) -> None:
    khop_command("train", "run.toml", "--out", "a")
    assert not OWN.exists()
    first = khop_command("evaluate", "a", "--baselines", "--json")
    changed = (OWN / "checkpoints/best").stat().st_mtime_ns
    second = khop_command("evaluate", "a", "--baselines", "--json", "--evaluation-batch-size", "7")
    assert own_scores(json.loads(first.stdout)) == own_scores(json.loads(second.stdout))
    assert (OWN / "checkpoints/best").stat().st_mtime_ns == changed


def test_training_that_was_stopped_goes_on(khop_command: Command, small_run: Path) -> None:
    """The run has three epochs; its baseline is stopped after the first."""
    khop_command("train", "run.toml", "--out", "a", "--baselines", "--epochs", "1")
    assert len((OWN / "metrics.jsonl").read_text().splitlines()) == 1
    stopped = khop_command("train", "--resume", "a", "--epochs", "3", "--baselines", "--json")
    khop_command("train", "run.toml", "--out", "b", "--baselines", "--epochs", "3")
    whole = khop_command("evaluate", "b", "--split", "all", "--baselines", "--json")
    assert own_scores(json.loads(stopped.stdout)) == own_scores(json.loads(whole.stdout))


def test_options_that_would_change_its_training_are_refused(khop_command: Command, small_run: Path) -> None:
    khop_command("train", "run.toml", "--out", "a")
    ran = khop_command("evaluate", "a", "--baselines", "--evaluation-batch-size", "7")
    assert ran.code == 2
    assert ran.stderr.startswith(
        "khop: --baselines: is not trained yet, and evaluation.batch_size would change"
    )


@pytest.mark.long
def test_any_number_of_processes_trains_the_same(khop_command: Command, small_run: Path) -> None:
    options = ("--precision", "float64", "--baselines", "--dropout", "0")
    khop_command("train", "run.toml", "--out", "a", *options)
    khop_command("train", "run.toml", "--out", "b", *options, "--procs", "2")
    read = ("--split", "all", "--baselines", "--json")  # processes of their own print beside this one
    one, two = (json.loads(khop_command("evaluate", run, *read).stdout) for run in ("a", "b"))
    assert len(own_scores(one)) == 3
    assert own_scores(one) == own_scores(two)


def test_label_propagation_is_left_out_with_a_message_where_servers_have_the_edges(
    small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepare(read_toml(small_run), small_run.parent)
    assert label_propagation_scores(run, ("val",), ()).keys() == {"val/label-propagation/accuracy"}
    far: Any = SimpleNamespace(servers=object(), schema=run.graph.schema)
    assert label_propagation_scores(replace(run, graph=far), ("val",), ()) == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("khop: --baselines: label propagation needs the edges, and servers have them")
