"""A task written outside khop whose seeds are tuples of nodes: run files take them by it, from an array."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

import khop
from cli.conftest import Ran
from khop.inference.chunks import Progress
from khop.run.contexts import TaskContext

Command = Callable[..., Ran]
KIND = f"{__name__}:Tuples"


@dataclass(frozen=True)
class TupleTask:
    """Regression of the label of a tuple by the mean of its nodes' outputs."""

    context: TaskContext
    model: nn.Module
    tuples: Mapping[str, tuple[Tensor, Tensor]]  # by split: int64 (N, M), and labels (N)
    metric: str = "rmse"
    splits: tuple[str, ...] = ("val", "test")

    @property
    def task(self) -> TupleTask:
        return self

    @property
    def whole(self) -> khop.Graph:
        return self.context.graph

    @property
    def node_types(self) -> tuple[str, ...]:
        target = self.context.config.task.target
        assert target is not None
        return (target,)

    def loader(self) -> khop.Loader:
        seeds = khop.NodeTuples(*({self.node_types[0]: of} for of in self.tuples["train"]))
        return self.context.loader(self.context.sampler(), seeds, self.model, {})

    def losses(self, output: Tensor, batch: khop.Batch) -> Tensor:
        labels = batch.tuple_labels[self.node_types[0]]
        return (predicted(output.view(len(labels), -1, output.shape[1])) - labels).square()

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        found = {}
        for split in splits:
            nodes, labels = self.tuples[split]
            ids, places = nodes.unique(return_inverse=True)
            outputs = self.context.outputs(self.model, self.node_types[0], ids, progress)
            found[split] = float((predicted(outputs[places]) - labels).square().mean().sqrt())
        return found


def predicted(outputs: Tensor) -> Tensor:
    """The score of each tuple, by the outputs of its nodes."""
    return outputs.mean(dim=1)[:, 0]


class Tuples:
    """Regression of tuples of nodes, of a file of NumPy."""

    class Options(BaseModel):
        """Settings in the table `task` of a run."""

        model_config = ConfigDict(frozen=True)

        tuples: str = Field("", description="File with nodes and labels of each split, such as train_nodes")

    @staticmethod
    def build(options: Options, context: TaskContext) -> TupleTask:
        arrays, target = np.load(options.tuples), context.config.task.target
        assert target is not None
        originals = context.graph.original_ids(target)  # of a partitioned graph, whose nodes have other ids
        tuples = {}
        for split in ("train", "val", "test"):
            nodes, labels = (torch.from_numpy(arrays[f"{split}_{name}"]) for name in ("nodes", "labels"))
            tuples[split] = (nodes if originals is None else originals.argsort()[nodes], labels)
        return TupleTask(context, context.model(context.sizes(target, outputs=1)), tuples)


@pytest.fixture
def run_file(learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run over tuples of three nodes, whose label is their share of class 0."""
    monkeypatch.chdir(tmp_path)
    graph, draw = khop.open_graph(learnable), torch.Generator().manual_seed(5)
    classes, arrays = graph.columns["item"]["category"], {}
    for split, count in (("train", 200), ("val", 60), ("test", 60)):
        nodes = torch.randint(graph.num_nodes("item"), (count, 3), generator=draw)
        arrays[f"{split}_nodes"] = nodes.numpy()
        arrays[f"{split}_labels"] = (classes[nodes] == 0).float().mean(dim=1).numpy()
    np.savez(tmp_path / "tuples.npz", **arrays)
    khop.partition_graph(learnable, tmp_path / "parts", 2, method="random")
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "{learnable}"
        compute_threads = 1
        task = {{ kind = "{KIND}", target = "item", tuples = "tuples.npz" }}
        sampler = {{ fanouts = [4, 3] }}
        model = {{ hidden = 16, dropout = 0.0 }}
        training = {{ epochs = 3, batch_size = 32, learning_rate = 0.03 }}
    """)
    return path


@pytest.mark.long
def test_a_run_file_takes_tuples_also_of_a_partitioned_graph_and_goes_on(
    khop_command: Command, run_file: Path
) -> None:
    whole = khop_command("train", str(run_file), "--out", "whole", "--json")
    assert whole.code == 0, whole.stderr
    parts = khop_command("train", str(run_file), "--graph", "parts", "--out", "parts-run", "--epochs", "2")
    assert parts.code == 0, parts.stderr
    more = ("--resume", "parts-run", "--epochs", "3", "--allow-code", "extension")
    assert khop_command("train", *more).code == 0
    losses = {name: steps(Path(name)) for name in ("whole", "parts-run")}
    assert len(losses["whole"]) == 3 * 7
    assert losses["parts-run"] == pytest.approx(losses["whole"], rel=1e-5)
    assert sum(losses["whole"][-7:]) < sum(losses["whole"][:7])
    found = khop_command("evaluate", "whole", "--split", "val", "--allow-code", "extension", "--json")
    assert json.loads(found.stdout)["val_rmse"] == json.loads(whole.stdout)["val_rmse"]


def steps(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()]
