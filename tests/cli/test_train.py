"""`khop train`: from a few words to a trained model in a folder of its own.

environment.json of a run: this machine, and the memory of each rank.

The tables of a profile.
"""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

import khop
from cli.conftest import Ran
from khop.cli.train import memory_of_ranks, profile_tables, write_environment
from khop.distributed.processes.group import this_group
from khop.run.profile import summarized
from khop.run.reporting.charts import drawn_curve
from khop.training.trainer import Trainer
from khop.user_cache import cache_folder
from run.reporting.support import config_of
from support.small_link_folders import write_diary
from support.synthetic_profiles import records_of

Command = Callable[..., Ran]


def metrics_of(folder: str | Path) -> list[dict[str, object]]:
    """metrics.jsonl, times aside."""
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_a_run_leaves_config_metrics_checkpoints_and_a_picture(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.train.drawn_curve", drawn_curve)  # forked tests leave pictures out
    ran = khop_command("train", str(small_run))
    assert (ran.code, ran.stderr) == (0, "")
    folder = Path("runs/toy-1")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.toml", "metrics.jsonl", "steps.jsonl", "checkpoints", "curve.png", "environment.json",
    }  # fmt: skip
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best", "last", "last-1"}
    assert imread(folder / "curve.png").shape[2] == 4
    assert [line["epoch"] for line in metrics_of(folder)] == [0, 1, 2]
    assert "toy: sage 2 x 16, fanouts 4,3, seed 0; results in runs/toy-1\n" in ran.stdout
    assert ran.stdout.count("\nepoch ") == 3


def test_a_picture_that_cannot_be_drawn_costs_one_line(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise ImportError("libfreetype.so.6: cannot open shared object file")

    monkeypatch.setattr("khop.cli.train.drawn_curve", broken)
    ran = khop_command("train", str(small_run), "--epochs", "1", "--json")
    assert ran.code == 0
    assert "curve.png is missing: libfreetype.so.6: cannot open shared object file" in ran.stderr
    assert json.loads(ran.stdout)["epochs"] == 1
    assert not Path("runs/toy-1/curve.png").exists()


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("model", "rule"), [("gcn", "symmetric-sum"), ("gin", "sum"), ("lightgcn", "symmetric-sum")]
)
def test_a_model_that_needs_a_rule_trains_by_it_and_the_command_says_so(
    khop_command: Command, small_run: Path, model: str, rule: str
) -> None:
    ran = khop_command("train", str(small_run), "--model", model, "--epochs", "1")
    assert ran.code == 0, ran.stderr
    assert f"sampler.rule.kind is {rule}: the model {model} needs this rule" in " ".join(ran.stdout.split())
    assert f'kind = "{rule}"' in Path("runs/toy-1/config.toml").read_text()


def test_a_rule_that_does_not_fit_the_model_is_refused(khop_command: Command, small_run: Path) -> None:
    ran = khop_command("train", str(small_run), "--model", "gcn", "--rule", "uniform")
    assert ran.code == 2
    assert "which GCN needs; draw them with rule=khop.SymmetricSum()" in ran.stderr


@pytest.mark.long
def test_a_score_below_its_baseline_is_named_with_three_settings_to_try(
    khop_command: Command, small_run: Path
) -> None:
    never = ("--epochs", "1", "--learning-rate", "1e-12")
    ran = khop_command("train", str(small_run), *never, "--hidden", "1", "--seed", "3")
    text = " ".join(ran.stdout.split())
    assert "does not beat majority" in text
    assert "Try first: --class-weights balanced, --dropout 0.2, --learning-rate 0.01" in text
    ran = khop_command("train", str(small_run), "--epochs", "8", "--json")
    assert json.loads(ran.stdout)["test_accuracy"] > 0.6  # four classes
    assert "does not beat" not in ran.stderr


@pytest.mark.long
def test_json_is_one_line_on_stdout_and_all_else_goes_to_stderr(
    khop_command: Command, small_run: Path
) -> None:
    ran = khop_command("train", str(small_run), "--json", "--out", "a")
    outcome = json.loads(ran.stdout)
    assert list(outcome) == [
        "run", "epochs", "best_epoch", "seconds", "train_accuracy", "train_majority_accuracy", "val_accuracy",
        "val_majority_accuracy", "test_accuracy", "test_majority_accuracy",
    ]  # fmt: skip
    assert (outcome["run"], outcome["epochs"]) == ("a", 3)
    best = metrics_of("a")[outcome["best_epoch"] - 1]
    assert (
        outcome["val_accuracy"]
        == best["val_accuracy"]
        == max(line["val_accuracy"] for line in metrics_of("a"))
    )
    assert outcome["test_accuracy"] == best["test_accuracy"]
    assert "epoch 3/3" in ran.stderr
    majority = {line["val_majority_accuracy"] for line in metrics_of("a")}
    assert majority == {outcome["val_majority_accuracy"]}  # no epoch changes it
    assert outcome["val_accuracy"] > outcome["val_majority_accuracy"] > 0


@pytest.mark.long
def test_equal_seeds_give_equal_metrics_whatever_the_threads(khop_command: Command, small_run: Path) -> None:
    train = ("train", str(small_run), "--epochs", "1", "--out")
    for name, threads in (("a", "1"), ("b", "1"), ("c", "4")):
        assert khop_command(*train, name, "--threads", threads).code == 0
    assert metrics_of("a") == metrics_of("b") == metrics_of("c")
    khop_command(*train, "e", "--seed", "1")
    assert metrics_of("e") != metrics_of("a")


@pytest.mark.long
def test_the_config_in_the_folder_repeats_the_run(khop_command: Command, small_run: Path) -> None:
    khop_command("train", str(small_run), "--out", "a", "--epochs", "1", "--hidden", "8")
    kept = tomllib.loads(Path("a/config.toml").read_text())
    model = {"kind": "sage", "hidden": 8, "layers": 2, "dropout": 0.1, "norm": "none", "residual": False}
    assert kept["model"] == model | {
        "column": "x",
        "encoder": "none",
        "bases": 0,
        "embedding_update": "dense",
        "embedded_types": "missing",
        "unknown": 0.0,
    }
    assert (kept["task"]["target"], kept["task"]["label"]) == ("item", "category")
    khop_command("train", "a/config.toml")
    assert metrics_of("runs/toy-1") == metrics_of("a")
    assert Path("runs/toy-1/config.toml").read_text() == Path("a/config.toml").read_text()


@pytest.mark.long
def test_a_run_continues_exactly_where_it_ended(khop_command: Command, small_run: Path) -> None:
    khop_command("train", str(small_run), "--out", "whole", "--epochs", "2")
    khop_command("train", str(small_run), "--out", "parts", "--epochs", "1")
    ran = khop_command("train", "--resume", "parts", "--epochs", "2", "--threads", "2", "--json")
    assert json.loads(ran.stdout)["epochs"] == 2
    assert metrics_of("parts") == metrics_of("whole")
    assert tomllib.loads(Path("parts/config.toml").read_text())["training"]["epochs"] == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ["--precision", "float64"],
        ["--precision", "bfloat16"],
        ["--expansion", "subgraph", "--replacement"],
        ["--norm", "layer", "--residual", "--layers", "2"],
        ["--evaluation-fanouts", "5,5", "--evaluation-every", "2"],
        ["--fanouts", "-1", "--weight-decay", "1e-4"],
        ["--patience", "1", "--learning-rate", "1e-9"],
    ],
    ids=" ".join,
)
def test_every_part_that_can_be_chosen_trains(
    khop_command: Command, small_run: Path, options: list[str]
) -> None:
    ran = khop_command("train", str(small_run), "--json", *options)
    assert ran.code == 0, ran.stderr
    assert 0.1 < json.loads(ran.stdout)["test_accuracy"] < 1


@pytest.mark.long
def test_the_metric_can_be_roc_auc(khop_command: Command, small_run: Path) -> None:
    ran = khop_command("train", str(small_run), "--json", "--metric", "roc-auc", "--epochs", "2")
    assert 0.5 < json.loads(ran.stdout)["test_roc_auc"] < 1


@pytest.mark.long
def test_threads_are_those_of_the_run_and_recorded(khop_command: Command, small_run: Path) -> None:
    khop_command(
        "train", str(small_run), "--compute-threads", "2", "--threads", "3", "--out", "a", "--epochs", "1"
    )
    assert torch.get_num_threads() == 2
    kept = tomllib.loads(Path("a/config.toml").read_text())
    assert (kept["compute_threads"], kept["threads"]) == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "no run is given: use khop train debian, khop train run.toml, or khop train --graph FOLDER"),
        (
            ["nope.toml"],
            "nope.toml: no such file; give a run.toml, a graph folder, or a preset: debian, debian-links, "
            "debian-typed",
        ),
        (
            ["run.toml", "--epochs", "x"],
            "training.epochs is 'x': must be a whole number of at least 1 (--epochs)",
        ),
        (
            ["run.toml", "--layers", "3", "--fanouts", "4,4"],
            "sampler.fanouts has 2 entries, model.layers is 3: give one fanout per layer "
            "(run.toml, --fanouts, --layers)",
        ),
        (
            ["run.toml", "--train-split", "x"],
            "task.train_split is 'x': the splits of item are train, val, test (--train-split)",
        ),
        (
            ["run.toml", "--out", "."],
            "out is '.': the folder is not empty; name another, or leave it out for a new one under runs/",
        ),
        (
            ["run.toml", "--topology", "device"],
            "gpu.topology is 'device', device is 'cpu': only a GPU reads that memory; give --device cuda, or "
            "--topology auto",
        ),
        (
            ["run.toml", "--precision", "tf32"],
            "precision is 'tf32', device is 'cpu': only GPUs compute products in TF32; give --device cuda, "
            "or --precision float32",
        ),
        (
            ["run.toml", "--launches", "recorded"],
            "gpu.launches is 'recorded', device is 'cpu': only launches on a GPU are recorded; give --device "
            "cuda, or leave --launches out",
        ),
        (
            ["--resume", "a"],
            "a: not a run folder, it has no config.toml; give a folder written by khop train",
        ),
        (["run.toml", "--resume", "a"], "--resume a already names the run to continue: leave out 'run.toml'"),
        (
            ["--resume", "a b", "--hidden", "3"],
            "--hidden cannot change in a resumed run; start a new run: "
            "khop train 'a b/config.toml' --hidden ...",
        ),
    ],
)
def test_bad_input_is_one_line_with_exit_code_two_and_leaves_nothing(
    khop_command: Command, small_run: Path, arguments: list[str], line: str
) -> None:
    assert khop_command("train", *arguments) == Ran(2, "", f"khop: {line}\n")
    assert [path.name for path in Path().iterdir()] == ["run.toml"]


def test_a_damaged_graph_is_one_line_and_leaves_nothing(
    khop_command: Command, small_run: Path, learnable: Path
) -> None:
    copy = Path("graphs/toy")
    shutil.copytree(learnable, copy)
    labels = copy / "nodes" / "item" / "category.npy"
    labels.write_bytes(labels.read_bytes()[:-8])
    ran = khop_command("train", "run.toml", "--graph", str(copy))
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"khop: {labels}: ")
    assert ran.stderr.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.long
def test_a_graph_and_options_are_a_run_without_a_file(
    khop_command: Command, small_run: Path, learnable: Path
) -> None:
    ran = khop_command("train", "--graph", str(learnable), "--epochs", "1", "--hidden", "8", "--json")
    assert json.loads(ran.stdout)["epochs"] == 1


@pytest.mark.long
def test_biased_draws_are_named_at_the_start(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = write_diary(tmp_path / "diary")
    monkeypatch.chdir(tmp_path)
    small = ["--fanouts", "3", "--hidden", "4", "--epochs", "1", "--compute-threads", "1"]
    options = [*small, "--graph", str(graph), "--weight", "price"]
    for more, count in (((), 1), (("--replacement",), 0)):
        ran = khop_command("train", *options, *more)
        assert ran.code == 0, ran.stderr
        assert " ".join(ran.stdout.split()).count("draws by price without replacement are biased") == count


@pytest.mark.long
def test_debian_is_a_run_that_comes_with_khop(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHOP_CACHE", "cache")
    tiny = ["--epochs", "1", "--hidden", "16", "--fanouts", "2,2", "--evaluation-fanouts", "2,2"]
    ran = khop_command(
        "train", "debian", "--json", "--compute-threads", "1", "--learning-rate", "0.02", *tiny
    )
    outcome = json.loads(ran.stdout)
    assert outcome["run"] == "runs/debian-1"
    assert outcome["test_accuracy"] > 0.3  # the most frequent section has less
    assert tomllib.loads(Path("runs/debian-1/config.toml").read_text())["graph"] == "debian"


def test_ctrl_c_before_the_first_update_says_that_there_is_nothing_to_continue_with(
    khop_command: Command, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Trainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "fit", interrupted)
    ran = khop_command("train", "run.toml", "--json")
    assert ran.code == 130
    assert ran.stderr.endswith("khop: stopped; there is no checkpoint yet\n")


def test_built_in_graphs_are_unpacked_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/her")
    monkeypatch.delenv("KHOP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/her/.cache/khop")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_folder() == Path("/var/cache/khop")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its specification
    assert cache_folder() == Path("/home/her/.cache/khop")
    monkeypatch.setenv("KHOP_CACHE", "/big/khop")
    assert cache_folder() == Path("/big/khop")


@pytest.mark.long
def test_tensorboard_gets_curves_beside_the_results(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    khop_command("train", "run.toml", "--epochs", "1", "--out", "a", "--tensorboard")
    assert [path.name.startswith("events.out.tfevents") for path in Path("a/tensorboard").iterdir()] == [True]
    khop_command("train", "run.toml", "--epochs", "1", "--out", "b")
    assert not Path("b/tensorboard").exists()


def test_without_tensorboard_the_option_says_how_to_install_it(
    khop_command: Callable[..., Ran], small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.training.run_loggers.find_spec", lambda name: None)
    done = khop_command("train", "run.toml", "--out", "a", "--tensorboard")
    assert done.code == 2
    assert done.stderr == (
        "khop: tensorboard is true: TensorBoard is not installed: pip install tensorboard (--tensorboard)\n"
    )
    assert not Path("a").exists()


@pytest.mark.parametrize("command", [("train", "run.toml"), ("profile", "run.toml")])
def test_more_processes_than_a_machine_bears_are_refused_before_one_is_started(
    khop_command: Callable[..., Ran], small_run: Path, command: tuple[str, ...]
) -> None:
    done = khop_command(*command, "--procs", "99999", "--out", "a")
    assert done.code == 2
    assert done.stderr.startswith("khop: procs 99999: more than 4 per core")
    assert "--oversubscribe" in done.stderr
    assert not Path("a").exists()


def test_peaks_of_memory_are_added_at_the_end(tmp_path: Path) -> None:
    group, file = this_group(), tmp_path / "environment.json"
    write_environment(tmp_path, config_of(), group)
    started = json.loads(file.read_text())
    assert (started["khop"], started["processes"], started["device"]) == (khop.__version__, 1, "cpu")
    write_environment(tmp_path, config_of(), group, memory_of_ranks(group, torch.device("cpu")))
    ended = json.loads(file.read_text())
    assert ended.keys() - started.keys() == {"peak_memory_bytes"}
    assert 1e7 < ended["peak_memory_bytes"] < ended["memory_bytes"]


def test_the_most_of_all_ranks_is_written(tmp_path: Path) -> None:
    write_environment(tmp_path, config_of(), this_group(), {"peak_memory_bytes": [5, 9, 7]})
    assert json.loads((tmp_path / "environment.json").read_text())["peak_memory_bytes"] == 9


def shown(*ranks: dict[str, float], steps: int = 10) -> str:
    console = Console(file=io.StringIO(), width=100)
    for table in profile_tables(summarized(records_of(*ranks, steps=steps))):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, table: int, rank: int) -> list[str]:
    rows = [line.split() for line in text.splitlines() if line.split()[:1] == [str(rank)]]
    return rows[table]


def test_a_process_alone_has_no_columns_for_others() -> None:
    text = shown({})
    assert "communi" not in text
    assert row(text, 0, 0) == ["0", "98.0", "1.0", "1%", "1.0", "1%", "95.0", "97%", "1.0", "1%"]
    assert row(text, 1, 0) == ["0", "1", "20%", "10.0", "10.0", "1,020", "10,204", "1.0", "kB", "1.0"]


def test_ranks_say_for_whom_they_waited() -> None:
    text = shown({}, {"forward": 0.15})
    assert row(text, 0, 0)[-2:] == ["1:", "100.0"]
    assert row(text, 0, 1)[-1] == "1%"  # of its logs: it waited for nobody


def test_of_one_step_the_busy_cores_are_left_open() -> None:
    assert row(shown({}, steps=1), 1, 0)[-1] == "kB"
