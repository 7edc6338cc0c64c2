"""A training run of seconds, over a small graph, that several tests share and interrupt."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.inference.evaluation import scores
from khop.inference.node_outputs import layerwise_inference
from khop.models.sage import SAGE
from khop.sampling.sampler import NeighborSampler
from khop.training.replace_folder import MODEL, STATE, TENSORS, encoded
from khop.training.run_log import Record
from khop.training.settings import TrainerSettings
from khop.training.step_clock import Unwatched
from khop.training.tasks import NodeClassification
from khop.training.trainer import Trainer
from support.small_graphs import SmallGraph, one_type


def sign_again(folder: Path, model: bytes | None = None, **training: object) -> None:
    """Change entries of a checkpoint's training state, or its model, with digests that fit."""
    state = json.loads((folder / STATE).read_text())
    tensors = {name: (folder / name).read_bytes() for name in TENSORS}
    if model is not None:
        tensors[MODEL] = model
    kept = {"training": state["training"] | training, "groups": state["groups"], "records": state["records"]}
    for name, content in encoded(tensors, kept).items():
        (folder / name).write_bytes(content)


SETTINGS = TrainerSettings(epochs=3, learning_rate=0.01)
STEPS = 5  # of an epoch


@dataclass
class Interrupting(Unwatched):
    """An observer that sends this process a signal after one update."""

    epoch: int
    step: int
    number: int = signal.SIGINT

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == (self.epoch, self.step):
            os.kill(os.getpid(), self.number)


@dataclass(frozen=True)
class SmallRun:
    """What a run is made of; `trainer` starts from the same weights each time."""

    out: Path
    settings: TrainerSettings = SETTINGS
    graph: SmallGraph = one_type()  # noqa: RUF009
    threads: int = 2
    dropout: float = 0.5
    observer: Unwatched = Unwatched()  # noqa: RUF009
    evaluate: Callable[[], Mapping[str, float]] | None = None
    model: Callable[[], nn.Module] | None = None

    def trainer(self) -> Trainer:
        """A trainer of 38 seeds in steps of 8, evaluated exactly on them and on the rest."""
        return self.over(Graph(self.graph.store, self.graph.features))

    def over(self, graph: Graph) -> Trainer:
        """The trainer with batches of this graph."""
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = self.model() if self.model else SAGE.for_graph(self.graph.store, 16, dropout=self.dropout)
        task = NodeClassification("node", "y")
        splits = {"train": torch.arange(38), "val": torch.arange(38, 60)}

        def outputs_of(nodes: Tensor) -> Tensor:
            return layerwise_inference(model, graph, graph.features, "node", nodes=nodes)

        def evaluate() -> Mapping[str, float]:
            return scores(task, graph.features, splits, outputs_of)

        scored = self.evaluate or evaluate
        return Trainer(model, task, self.loader(graph), scored, self.settings, self.out, self.observer)

    def loader(self, graph: Graph) -> Loader:
        """The loader of the seeds."""
        return Loader(
            NeighborSampler(graph, [3, 3]),
            torch.arange(38),
            8,
            shuffle=True,
            seed=1,
            columns=["x"],
            seed_columns=["y"],
            threads=self.threads,
        )

    def with_(self, **settings: object) -> Self:
        """The same with other settings."""
        return replace(self, settings=replace(self.settings, **settings))  # type: ignore[arg-type]


def without_seconds(records: list[Record]) -> list[Record]:
    """What has to be equal in two runs."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]
