"""A model written outside khop: from Python, from a run file, on one process and on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import khop
from cli.conftest import Ran
from khop.batch import Adjacency
from khop.components import MODELS
from khop.models.stack import Sequential
from khop.run.contexts import ModelContext

Command = Callable[..., Ran]
KIND = f"{__name__}:HeadsModel"


class Heads(nn.Module):
    """Means of the in-neighbors, weighted in each head by a score of the neighbor."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.own, self.neighbors = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        self.score = nn.Linear(inputs, heads)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        source, destination = adjacency.edge_index
        count, scores = adjacency.num_dst, self.score(x).sigmoid()[source]
        values = self.neighbors(x)[source].unflatten(1, (scores.shape[1], -1)) * scores.unsqueeze(2)
        sums = values.new_zeros(count, *values.shape[1:]).index_add(0, destination, values)
        total = scores.new_full((count, scores.shape[1]), 1e-3).index_add(0, destination, scores)
        return torch.relu(self.own(x[:count]) + (sums / total.unsqueeze(2)).flatten(1))


class HeadsModel(Sequential):
    """Layers of `Heads` and a linear layer; `Sequential` exposes the layers to exact inference."""

    @dataclass(frozen=True)
    class Options:
        """Settings in the table `model` of a run."""

        heads: int = 2
        """Heads per layer"""
        scale: float = 1.0
        """Factor of the outputs"""

        def __post_init__(self) -> None:
            if self.heads < 1:
                raise ValueError(f"heads is {self.heads}: must be at least 1")

    def __init__(self, widths: list[int], outputs: int, heads: int, scale: float = 1.0) -> None:
        super().__init__([Heads(*pair, heads) for pair in pairwise(widths)])
        self.out, self.scale = nn.Linear(widths[-1], outputs), scale

    @classmethod
    def build(cls, options: Options, context: ModelContext) -> HeadsModel:
        (inputs,) = context.sizes.inputs.values()
        widths = [inputs, *[context.hidden] * context.layers]
        return cls(widths, context.sizes.outputs, options.heads, options.scale)

    def head(self, node_type: str, h: Tensor) -> Tensor:
        return self.out(h) * self.scale

    def forward(self, batch: khop.Batch) -> Tensor:
        rows = super().forward(batch)
        assert isinstance(rows, Tensor)
        return self.head("item", rows)


class NamedLikeArguments(HeadsModel):
    """A model with options that are named like parameters of the command, or are lists."""

    @dataclass(frozen=True)
    class Options(HeadsModel.Options):
        """Settings in the table `model` of a run."""

        source: str = "none"
        """Source"""
        as_json: bool = False
        """Style"""
        names: tuple[str, ...] = ("a", "b")
        """Names"""
        factors: tuple[float, ...] = (0.5, 2.0)
        """Factors"""


class WholeModel(nn.Module):
    """A model that does not expose its layers, and has no options."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = Heads(inputs, 8, 2), Heads(8, outputs, 1)

    @staticmethod
    def build(options: object, context: ModelContext) -> WholeModel:
        return WholeModel(context.sizes.inputs["item"], context.sizes.outputs)

    def forward(self, batch: khop.Batch) -> Tensor:
        first, second = batch.blocks
        rows = self.second(self.first(batch["x"], first.adjacency), second.adjacency)
        return rows[batch.seed_index]


@pytest.fixture
def run_file(learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "{learnable}"
        compute_threads = 1
        sampler = {{ fanouts = [4, 3] }}
        model = {{ kind = "{KIND}", hidden = 16, heads = 4 }}
        training = {{ epochs = 3, batch_size = 64, learning_rate = 0.03 }}
    """)
    return path


def test_from_python(learnable: Path) -> None:
    graph = khop.open_graph(learnable)
    loader = khop.Loader(
        khop.NeighborSampler(graph, [4, 3]),
        graph.split("train"),
        64,
        columns=["x"],
        seed_columns=["category"],
    )
    model = HeadsModel([4, 8, 8], 4, heads=2)
    batch = loader.batch(0, 0)
    assert model(batch).shape == (64, 4)
    assert 0 <= khop.evaluate(model, graph, split="val") <= 1


def test_from_a_run_file(khop_command: Command, run_file: Path) -> None:
    ran = khop_command("train", str(run_file), "--out", "run", "--scale", "0.5", "--json")
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout)["test_accuracy"] > 0.5
    table = tomllib.loads(Path("run/config.toml").read_text())["model"]
    assert table["kind"] == KIND
    assert (table["heads"], table["scale"], table["hidden"], table["layers"]) == (4, 0.5, 16, 2)
    assert "dropout" not in table
    again = khop_command("train", "run/config.toml", "--out", "again", "--allow-code", "extension", "--json")
    assert json.loads(again.stdout) == {**json.loads(ran.stdout), "run": "again"} | {
        "seconds": json.loads(again.stdout)["seconds"]
    }


def test_a_run_folder_imports_it_only_with_permission(khop_command: Command, run_file: Path) -> None:
    assert khop_command("train", str(run_file), "--out", "run", "--epochs", "2").code == 0
    for command in (
        ["evaluate", "run"],
        ["infer", "run", "--out", "rows.npy"],
        ["train", "--resume", "run", "--epochs", "3"],
        ["train", "run/config.toml"],
        ["profile", "run"],
    ):
        refused = khop_command(*command)
        assert refused.code == 2
        assert refused.stderr.replace("\n", " ") == (
            f"khop: model.kind is '{KIND}': code named by a run folder is not imported without "
            "permission; if you trust it, give --allow-code extension (run/config.toml) "
        )
    allowed = ("--allow-code", "other", "--allow-code", "extension.test_model")
    assert khop_command("train", "--resume", "run", "--epochs", "3", *allowed).code == 0
    assert khop_command("evaluate", "run", *allowed).code == 0
    assert khop_command("infer", "run", "--out", "rows.npy", *allowed).code == 0
    assert np.load("rows.npy").shape == (600, 16)


@pytest.mark.long
def test_a_profile_of_a_run_folder_takes_its_options_and_other_models(
    khop_command: Command, run_file: Path
) -> None:
    assert khop_command("train", str(run_file), "--out", "run", "--epochs", "1").code == 0
    short = ("profile", "run", "--steps", "3")
    assert khop_command(*short, "--heads", "1").code == 2
    ran = khop_command(*short, "--heads", "1", "--out", "own", "--allow-code", "extension")
    assert ran.code == 0, ran.stderr
    assert tomllib.loads(Path("own/config.toml").read_text())["model"]["heads"] == 1
    ran = khop_command(*short, "--model", f"{__name__}:NamedLikeArguments", "--out", "typed")
    assert ran.code == 0, ran.stderr


@pytest.mark.long
def test_options_may_have_the_names_of_the_commands_parameters(khop_command: Command, run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace(KIND, f"{__name__}:NamedLikeArguments"))
    shown = " ".join(khop_command("train", str(run_file), "--help").stdout.split())
    assert "TEXT,TEXT,..." in shown
    assert "Names (default a,b)." in shown
    assert "NUMBER,NUMBER,..." in shown
    assert "Factors (default 0.5,2.0)." in shown
    given = ("--source", "x", "--as-json", "--names", "c,{d", "--factors", "1,2.5", "--epochs", "1")
    ran = khop_command("train", *given, str(run_file), "--out", "run")
    assert ran.code == 0, ran.stderr
    table = tomllib.loads(Path("run/config.toml").read_text())["model"]
    assert (table["source"], table["as_json"], table["names"], table["factors"]) == (
        "x",
        True,
        ["c", "{d"],
        [1.0, 2.5],
    )


def test_completion_imports_no_code_of_a_run_file(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("seen.py").write_text("open('imported', 'w')\n")
    run_file.write_text(run_file.read_text().replace(KIND, "seen:Model"))
    words = f"khop train {run_file} --hidd"
    asked = {"_KHOP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    command = [sys.executable, "-m", "khop"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--hidden"]
    assert not Path("imported").exists()


@pytest.mark.long
def test_on_two_ranks_losses_are_those_of_one_process(khop_command: Command, run_file: Path) -> None:
    for name, procs in (("one", "1"), ("two", "2")):
        ran = khop_command("train", str(run_file), "--out", name, "--procs", procs)
        assert ran.code == 0, ran.stderr
    one, two = (
        [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two], rel=1e-3)
    allowed = ("--allow-code", "extension")
    assert khop_command("evaluate", "two", "--procs", "2", *allowed).code == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:WholeModel does not expose its layers")
def test_one_without_layers_is_evaluated_on_batches(khop_command: Command, run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace(", heads = 4", ""))
    kind = ("--model", f"{__name__}:WholeModel", "--epochs", "1")
    exact = khop_command("train", str(run_file), *kind, "--json")
    sampled = khop_command("train", str(run_file), *kind, "--evaluation-fanouts", "50,50", "--json")
    assert (exact.code, sampled.code) == (0, 0), exact.stderr + sampled.stderr
    scores = [json.loads(ran.stdout)["test_accuracy"] for ran in (exact, sampled)]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)  # no node has more than 50 neighbors


def test_help_and_errors_are_those_of_the_declaration(khop_command: Command, run_file: Path) -> None:
    shown = khop_command("train", str(run_file), "--help").stdout
    assert "--heads" in shown
    assert "Heads per layer (default 2)." in shown
    for option, sentence in (
        (["--heads", "many"], "model.heads is 'many': must be a whole number (--heads)"),
        (["--heads", "0"], "model: heads is 0: must be at least 1"),
    ):
        ran = khop_command("train", str(run_file), *option)
        assert ran.code == 2
        assert sentence in ran.stderr.replace("\n", " ")
    run_file.write_text(run_file.read_text().replace("heads = 4", "head = 4"))
    assert (
        "model.head: no such field; did you mean model.heads?" in khop_command("train", str(run_file)).stderr
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no_such_package:Model", "there is no module 'no_such_package'"),
        (f"{__name__}:Other", "has no 'Other'"),
        (f"{__name__}:Heads", "a component is a class with build"),
        ("sage2", f"must be one of {', '.join(MODELS.builtin)}, or package.module:Class"),
    ],
)
def test_a_kind_that_is_no_component_is_refused(
    khop_command: Command, run_file: Path, kind: str, reason: str
) -> None:
    ran = khop_command("train", str(run_file), "--model", kind)
    assert ran.code == 2
    assert f"model.kind is '{kind}': " in ran.stderr.replace("\n", " ")
    assert reason in ran.stderr.replace("\n", " ")
