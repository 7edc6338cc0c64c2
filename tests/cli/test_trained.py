"""`--baselines`: a model of own features, trained in the run's folder, beside each score.

`khop evaluate`: what training measured can be measured again, and in other ways.
"""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
import torch

import khop
from cli.conftest import Ran, write_run
from data.tables.shop import roomy, spec
from khop import import_tables
from khop.cli.arguments import recorded_run
from khop.cli.run_folder import write_config
from khop.cli.trained import label_propagation_scores
from khop.run.build import Run, prepare
from khop.run.check import checked
from khop.run.read import read_toml
from support.commands import train_here

Command = Callable[..., Ran]


OWN = Path("a/baselines/own-features")


def own_scores(outcome: dict[str, object]) -> dict[str, object]:
    return {name: score for name, score in outcome.items() if "_own_features_" in name}


def test_work_that_does_not_fit_in_memory_is_refused_with_a_remedy(
    khop_command: Command, trained_run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.run.memory_need.free_memory_bytes", lambda: 1 << 16)
    for words in (("evaluate", "a"), ("infer", "a", "--out", "e.npy")):
        ran = khop_command(*words)
        assert ran.code == 2
        said = ran.stderr.replace("\n", " ")
        assert "the run needs" in said
        assert "for chunks of 8,192 nodes" in said
        assert "updates" not in said
    assert not Path("e.npy").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_a_run_of_a_gpu_is_read_on_a_machine_without_one(
    khop_command: Command, trained: dict[str, object]
) -> None:
    config = checked(recorded_run(Path("a"), ()))
    gpu = config.gpu.model_copy(update={"topology": "pinned", "launches": "recorded"})
    write_config(Path("a"), config.model_copy(update={"device": "cuda", "precision": "tf32", "gpu": gpu}))
    says = "khop: device is cpu: the run was trained on cuda, and torch finds no GPU on this machine\n"
    ran = khop_command("evaluate", "a", "--json")
    assert (ran.code, ran.stderr.count(says)) == (0, 1), ran.stderr
    assert json.loads(ran.stdout)["test_accuracy"] == trained["test_accuracy"]
    for words in (("infer", "a", "--out", "e.npy"), ("train", "--resume", "a", "--epochs", "4")):
        ran = khop_command(*words)
        assert (ran.code, ran.stderr.count(says)) == (0, 1), ran.stderr
    write_config(Path("a"), config.model_copy(update={"device": "cuda:1"}))
    with pytest.warns(UserWarning, match="device is cpu: the run was trained on cuda:1, and torch finds no"):
        khop.load_run("a")
    ran = khop_command("evaluate", "a", "--device", "cpu")
    assert (ran.code, ran.stderr) == (0, "")
    ran = khop_command("evaluate", "a", "--device", "cuda")
    assert ran.code == 2
    assert ran.stderr.startswith("khop: device 'cuda': torch finds no CUDA device; give device=\"cpu\", or ")


@pytest.mark.long
def test_training_shows_the_scores_of_own_features_beside_each_score(
    khop_command: Command, small_run: Path
) -> None:
    ran = khop_command("train", "run.toml", "--out", "a", "--baselines", "--json", "--epochs", "1")
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


@pytest.mark.long
def test_an_evaluation_trains_it_once(khop_command: Command, trained_run: None) -> None:
    assert not OWN.exists()
    first = khop_command("evaluate", "a", "--baselines", "--json")
    changed = (OWN / "checkpoints/best").stat().st_mtime_ns
    second = khop_command("evaluate", "a", "--baselines", "--json", "--evaluation-batch-size", "7")
    assert own_scores(json.loads(first.stdout)) == own_scores(json.loads(second.stdout))
    assert (OWN / "checkpoints/best").stat().st_mtime_ns == changed


@pytest.mark.long
def test_training_that_was_stopped_goes_on(khop_command: Command, small_run: Path) -> None:
    """The run has two epochs; its baseline is stopped after the first."""
    khop_command("train", "run.toml", "--out", "a", "--baselines", "--epochs", "1")
    assert len((OWN / "metrics.jsonl").read_text().splitlines()) == 1
    stopped = khop_command("train", "--resume", "a", "--epochs", "2", "--baselines", "--json")
    khop_command("train", "run.toml", "--out", "b", "--baselines", "--epochs", "2")
    whole = khop_command("evaluate", "b", "--split", "all", "--baselines", "--json")
    assert own_scores(json.loads(stopped.stdout)) == own_scores(json.loads(whole.stdout))


def test_options_that_would_change_its_training_are_refused(khop_command: Command, trained_run: None) -> None:
    ran = khop_command("evaluate", "a", "--baselines", "--evaluation-batch-size", "7")
    assert ran.code == 2
    assert ran.stderr.startswith(
        "khop: --baselines: the baseline is not trained yet, and evaluation.batch_size would change"
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
    assert line.startswith(
        "khop: --baselines: label propagation is left out, because the edges are on servers"
    )


@pytest.fixture(scope="module")
def made(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a run of three epochs, and what its training printed."""
    home = tmp_path_factory.mktemp("trained")
    write_run(home, learnable)
    with chdir(home), redirect_stdout(io.StringIO()) as out:
        train_here("run.toml", "--out", "a", "--json")
    return home, out.getvalue()


@pytest.fixture
def trained(made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What training said; the working directory is a copy of the folder."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    outcome = json.loads(made[1])
    assert isinstance(outcome, dict)
    return outcome


@pytest.mark.core(1)
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_the_best_checkpoint_scores_what_training_said(
    khop_command: Command, small_run: Path, precision: str
) -> None:
    ran = khop_command("train", "run.toml", "--out", "a", "--json", "--precision", precision)
    trained = json.loads(ran.stdout)
    ran = khop_command("evaluate", "a", "--split", "all", "--json")
    measured = json.loads(ran.stdout)
    assert measured == {
        "run": "a",
        "checkpoint": "best",
        **{name: score for name, score in trained.items() if name.endswith("_accuracy")},
    }
    assert "test accuracy" in ran.stderr


def test_progress_is_shown_before_the_first_chunk_ends(
    khop_command: Command, trained: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, compared = threading.Event(), Run.compared
    monkeypatch.setattr("khop.cli.terminal.FIRST_S", 0.01)
    monkeypatch.setattr("khop.cli.terminal.tell", lambda line: said.set() if line == "evaluating" else None)
    monkeypatch.setattr(Run, "compared", lambda *given: (said.wait(60), compared(*given))[1])
    assert khop_command("evaluate", "a").code == 0
    assert said.is_set()


def test_the_test_split_is_measured_unless_another_is_named(
    khop_command: Command, trained: dict[str, object]
) -> None:
    assert json.loads(khop_command("evaluate", "a", "--json").stdout) == {
        "run": "a", "checkpoint": "best", "test_accuracy": trained["test_accuracy"],
        "test_majority_accuracy": trained["test_majority_accuracy"],
    }  # fmt: skip
    shown = khop_command("evaluate", "a", "--split", "val").stdout
    (scores,) = [line.split() for line in shown.splitlines() if line.lstrip().startswith("val ")]
    assert (scores[:2], scores[3]) == (["val", "accuracy"], "(majority")


@pytest.mark.long
def test_the_last_checkpoint_scores_as_the_last_epoch(
    khop_command: Command, trained: dict[str, object]
) -> None:
    ran = khop_command("evaluate", "a", "--checkpoint", "last", "--split", "train", "--json")
    last = json.loads(Path("a/metrics.jsonl").read_text().splitlines()[-1])
    assert json.loads(ran.stdout)["train_accuracy"] == last["train_accuracy"]


def test_all_neighbors_drawn_one_way_or_the_other_are_the_same(
    khop_command: Command, trained: dict[str, object]
) -> None:
    exact = json.loads(khop_command("evaluate", "a", "--json").stdout)
    sampled = khop_command("evaluate", "a", "--json", "--evaluation-fanouts", "-1,-1", "--threads", "2")
    assert json.loads(sampled.stdout) == exact


def test_further_metrics_stand_beside_the_runs_own(khop_command: Command, trained: dict[str, object]) -> None:
    ran = khop_command("evaluate", "a", "--json", "--metric", "f1-macro", "--metric", "f1-micro")
    measured = json.loads(ran.stdout)
    assert measured["test_f1_micro"] == measured["test_accuracy"] == trained["test_accuracy"]
    assert 0 < measured["test_f1_macro"] < 1
    wrong = khop_command("evaluate", "a", "--metric", "f1")
    assert wrong.code == 2
    assert wrong.stderr == (
        "khop: metric 'f1': must be one of accuracy, f1-macro, f1-micro, roc-auc, average-precision\n"
    )


def test_a_folder_without_a_checkpoint_says_so(khop_command: Command, trained: dict[str, object]) -> None:
    Path("a/checkpoints/best").rename("elsewhere")
    ran = khop_command("evaluate", "a")
    assert ran.code == 2
    assert ran.stderr.startswith("khop: a/checkpoints/best: no checkpoint exists; ")
    assert khop_command("evaluate", "b").stderr == (
        "khop: b: not a run folder, it has no config.toml; give a folder written by khop train\n"
    )


def test_a_damaged_checkpoint_is_done_without(khop_command: Command, trained: dict[str, object]) -> None:
    last = ("evaluate", "a", "--checkpoint", "last", "--json")
    whole = json.loads(khop_command(*last).stdout)
    state = Path("a/checkpoints/last/state.json")
    state.write_text(state.read_text().replace('"epoch": 3', '"epoch": 2'))
    ran = khop_command(*last)
    assert ran.stderr.splitlines()[0] == (
        f"khop: {state}: cut short or damaged; a/checkpoints/last-1 is used instead"
    )
    assert json.loads(ran.stdout).keys() == whole.keys()

    best = Path("a/checkpoints/best/model.safetensors")
    best.write_bytes(best.read_bytes()[:-1])
    ran = khop_command("evaluate", "a")
    assert ran.code == 2
    assert ran.stderr == f"khop: {best}: cut short or damaged; use another checkpoint, or train again\n"


@pytest.mark.parametrize("command", [("evaluate", "a"), ("infer", "a", "--out", "rows.npy")])
def test_a_damaged_setting_of_the_run_is_named(
    khop_command: Command, trained: dict[str, object], command: tuple[str, ...]
) -> None:
    """One that the shapes of the weights do not show: it would change the scores without a word."""
    config = Path("a/config.toml")
    text = config.read_text()
    assert "\nresidual = false\n" in text
    config.write_text(text.replace("\nresidual = false\n", "\nresidual = true\n"))
    ran = khop_command(*command)
    assert ran.code == 2
    warning, error = ran.stderr.splitlines()
    assert warning.startswith("khop: a/config.toml: was changed or damaged after khop train wrote it")
    assert error.startswith(
        "khop: a/checkpoints/best: the run was started with other settings: model.residual was "
    )


def test_predictions_are_written_beside_the_scores(khop_command: Command, trained: dict[str, object]) -> None:
    ran = khop_command("evaluate", "a", "--split", "all", "--predictions", "out.parquet", "--json")
    assert json.loads(ran.stdout)["predictions"] == "out.parquet"
    rows = pyarrow.parquet.read_table("out.parquet").to_pylist()
    test = [row for row in rows if row["split"] == "test"]
    right = sum(row["label"] == row["prediction"] for row in test)
    assert right / len(test) == trained["test_accuracy"]
    assert {row["split"] for row in rows} == {"train", "val", "test"}
    again = khop_command("evaluate", "a", "--predictions", "out.parquet")
    assert again.stderr == "khop: out.parquet: exists already; remove it or choose another name\n"


@pytest.mark.long
def test_predictions_for_links_have_the_users_ids(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    import_tables(spec(**roomy()), "shop")
    khop_command(
        "train", "--graph", "shop", "--task", "link-prediction", "--target", "user buys item", "--out", "a",
        "--epochs", "1", "--hidden", "4", "--eval-negatives", "1", "--compute-threads", "1",
    )  # fmt: skip
    khop_command("evaluate", "a", "--predictions", "out.parquet")
    (row,) = pyarrow.parquet.read_table("out.parquet").to_pylist()
    assert (row["source_id"], row["destination_id"], row["split"]) == ("u3", "d", "test")
