"""A task written outside khop, with a loss and a metric of its own: regression of a column of nodes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import khop
from cli.conftest import Ran
from khop.inference.evaluation import scores
from khop.run.contexts import TaskContext
from khop.run.tasks.node_task import NodeTask
from khop.run.tasks.resolve_task import ResolveContext

Command = Callable[..., Ran]
KIND = f"{__name__}:Regression"


@dataclass(frozen=True)
class Huber:
    """Huber loss of the first output; the metric is the negative mean absolute error: higher is better."""

    node_type: str
    label: str
    delta: float
    metric: str = "negative-error"
    metrics: tuple[str, ...] = field(default=("negative-error", "negative-square"))

    def losses(self, output: Tensor, batch: khop.Batch) -> Tensor:
        wanted = batch.seed_column(self.label, self.node_type).to(output.dtype)
        return F.huber_loss(output[:, 0], wanted, reduction="none", delta=self.delta)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        error = (output[:, 0] - labels).abs()
        return -float((error.square() if metric == "negative-square" else error).mean())


class Regression:
    """Regression of the column `label` of nodes."""

    class Options(BaseModel):
        """Settings in the table `task` of a run."""

        model_config = ConfigDict(frozen=True)

        delta: float = Field(1.0, gt=0, description="Error from which on the loss is linear")
        of_classes: bool = Field(False, description="Take the number of classes for delta")

    @staticmethod
    def resolve(options: Options, context: ResolveContext) -> Options:
        if not options.of_classes:
            return options
        task = context.config.task
        assert task.target is not None
        assert task.label is not None
        count = context.graph.schema.column(task.target, task.label).num_classes
        return options.model_copy(update={"delta": float(count or 1), "of_classes": False})

    @staticmethod
    def build(options: Options, context: TaskContext) -> NodeTask:
        task = context.config.task
        assert task.target is not None
        assert task.label is not None
        return NodeTask.of(context, Huber(task.target, task.label, options.delta), outputs=1)


@pytest.fixture
def run_file(learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "{learnable}"
        compute_threads = 1
        task = {{ kind = "{KIND}", target = "item", label = "category", delta = 2.0 }}
        sampler = {{ fanouts = [4, 3] }}
        model = {{ hidden = 16, dropout = 0.0 }}
        training = {{ epochs = 3, batch_size = 64, learning_rate = 0.03 }}
    """)
    return path


def test_from_python(learnable: Path, tmp_path: Path) -> None:
    graph, task = khop.open_graph(learnable), Huber("item", "category", 1.0)
    seeds, columns = graph.split("train"), ["category"]
    loader = khop.Loader(khop.NeighborSampler(graph, [4, 3]), seeds, 64, columns=["x"], seed_columns=columns)
    model = khop.models.SAGE(replace(khop.models.ModelSizes.of(graph, "item"), outputs=1), 16)
    nodes = {"val": graph.split("val")["item"]}

    def evaluate() -> dict[str, float]:
        return scores(task, graph.features, nodes, lambda ids: outputs(model, graph, ids))

    before = evaluate()["val"]
    settings = khop.TrainerSettings(epochs=2, learning_rate=0.03)
    khop.Trainer(model, task, loader, evaluate, settings, tmp_path / "run").fit()
    assert evaluate()["val"] > before
    assert khop.evaluate(model, graph, split="val", task=task) == evaluate()["val"]


def outputs(model: khop.models.SAGE, graph: khop.Graph, ids: Tensor) -> Tensor:
    return khop.layerwise_inference(model, graph, graph.features, "item", nodes=ids)


def test_from_a_run_file(khop_command: Command, run_file: Path) -> None:
    ran = khop_command("train", str(run_file), "--out", "run", "--delta", "0.5", "--json")
    assert ran.code == 0, ran.stderr
    assert -1 < json.loads(ran.stdout)["val_negative_error"] < 0
    table = tomllib.loads(Path("run/config.toml").read_text())["task"]
    assert (table["kind"], table["delta"], table["target"]) == (KIND, 0.5, "item")
    metric = ("--metric", "negative-square")
    assert khop_command("evaluate", "run", *metric).code == 2
    found = khop_command("evaluate", "run", *metric, "--allow-code", "extension", "--json")
    assert {"test_negative_error", "test_negative_square"} <= json.loads(found.stdout).keys()
    unknown = khop_command("evaluate", "run", "--metric", "mrr", "--allow-code", "extension")
    assert "metric 'mrr': must be one of negative-error, negative-square" in unknown.stderr.replace("\n", " ")


def test_node_type_label_and_metric_are_those_of_the_run(khop_command: Command, run_file: Path) -> None:
    open_ones = 'target = "item", label = "category"'
    run_file.write_text(run_file.read_text().replace(open_ones, 'metric = "negative-square"'))
    ran = khop_command("train", str(run_file), "--out", "run", "--epochs", "1", "--json")
    assert ran.code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "val_negative_square" in found
    table = tomllib.loads(Path("run/config.toml").read_text())["task"]
    assert (table["target"], table["label"]) == ("item", "category")
    plain = khop_command(
        "train", str(run_file), "--out", "plain", "--epochs", "1", "--metric", "negative-error"
    )
    assert plain.code == 0, plain.stderr
    beside = ("--metric", "negative-square", "--split", "val", "--allow-code", "extension", "--json")
    again = json.loads(khop_command("evaluate", "plain", *beside).stdout)
    assert again["val_negative_square"] == pytest.approx(found["val_negative_square"])
    wrong = khop_command("train", str(run_file), "--metric", "mrr")
    assert "task.metric is 'mrr': must be one of negative-error, negative-square" in " ".join(
        wrong.stderr.split()
    )


@pytest.mark.long
def test_open_settings_are_filled_in_before_the_run_starts(khop_command: Command, run_file: Path) -> None:
    ran = khop_command("train", str(run_file), "--of-classes", "--out", "run", "--epochs", "1")
    assert ran.code == 0, ran.stderr
    assert tomllib.loads(Path("run/config.toml").read_text())["task"]["delta"] == 4.0


def test_its_declaration_limits_values(khop_command: Command, run_file: Path) -> None:
    ran = khop_command("train", str(run_file), "--delta", "0")
    assert "task.delta is 0.0: must be a number above 0" in ran.stderr.replace("\n", " ")


@pytest.mark.long
def test_on_two_ranks_losses_are_those_of_one_process(khop_command: Command, run_file: Path) -> None:
    for name, procs in (("one", "1"), ("two", "2")):
        ran = khop_command("train", str(run_file), "--out", name, "--procs", procs)
        assert ran.code == 0, ran.stderr
    one, two = (
        [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    for name in ("loss", "val_negative_error"):
        assert [line[name] for line in one] == pytest.approx([line[name] for line in two], rel=1e-3)
