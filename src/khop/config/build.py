"""Everything that a run needs, made from its config: the one place that knows every part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from khop.api import Graph, Loader, open_graph
from khop.config.read import RawRun, checked
from khop.config.resolve import graph_folder, resolve
from khop.config.values import Fanout, RunConfig, Sampler
from khop.draw import Keep, Rule, Temporal, Uniform, Weighted
from khop.graph.progress import Notice
from khop.loading.columns import ColumnChoice
from khop.loading.ordered_map import InFlight
from khop.loading.seed_times import seed_times
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from khop.models.sizes import ModelSizes
from khop.models.stack import Stack
from khop.sampling.neighbor import Expansion, NeighborSampler
from khop.training.checkpoint import load_checkpoint, restore_model
from khop.training.evaluation import scores
from khop.training.inference import Progress, layerwise_inference, sampled_inference
from khop.training.initial import seeded
from khop.training.observer import Observer
from khop.training.settings import TrainerSettings
from khop.training.tasks import NodeClassification
from khop.training.trainer import Trainer

SPLITS = ("train", "val", "test")  # what results call them, whatever the graph does


@dataclass(frozen=True, eq=False)
class Run:
    """A run, ready to train or to measure."""

    config: RunConfig  # resolved
    graph: Graph
    model: Stack
    task: NodeClassification

    def loader(self) -> Loader:
        """The batches of training."""
        config, target = self.config, self.task.node_type
        return Loader(
            self._sampler(config.sampler.fanouts),
            {target: self._nodes("train")},
            config.training.batch_size,
            shuffle=True,
            seed=config.training.seed,
            columns=[config.model.column],
            seed_columns={target: [self.task.label]},
            seed_times=config.sampler.time,
            device=config.device,
            threads=config.threads,
            prefetch=config.prefetch,
            prefetch_bytes=config.prefetch_bytes,
        )

    def trainer(self, out: Path, observer: Observer) -> Trainer:
        """What trains the model, measures every split and keeps the results in `out`."""
        config, training = self.config, self.config.training
        settings = TrainerSettings(
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
            evaluate_every=config.evaluation.every,
            patience=training.patience or None,
            precision=config.precision,
            seed=training.seed,
            device=config.device,
        )
        return Trainer(
            self.model,
            self.task,
            self.loader(),
            lambda: self.scores(SPLITS, observer.evaluating),
            settings,
            out,
            observer,
        )

    def restore(self, checkpoint: Path) -> None:
        """Take the weights of a checkpoint folder."""
        restore_model(self.model, load_checkpoint(checkpoint))

    def scores(self, splits: tuple[str, ...], progress: Progress) -> dict[str, float]:
        """The task's metric on each of the splits, from one pass of evaluation."""
        nodes = {split: self._nodes(split) for split in splits}
        return scores(self.task, self.graph.features, nodes, lambda ids: self._outputs(ids, progress))

    def _outputs(self, nodes: Tensor, progress: Progress) -> Tensor:
        config, target = self.config, self.task.node_type
        evaluation = config.evaluation
        in_flight = InFlight(config.threads, config.prefetch, config.prefetch_bytes)
        if not evaluation.fanouts:
            return layerwise_inference(
                self.model,
                self.graph,
                self.graph.features,
                target,
                nodes=nodes,
                chunk_size=evaluation.batch_size,
                progress=progress,
                in_flight=in_flight,
            )
        return sampled_inference(
            self.model,
            self._sampler(evaluation.fanouts),
            self.graph.features,
            target,
            nodes=nodes,
            times=self._times(nodes),
            columns=ColumnChoice.of(self.graph.schema, [config.model.column], (), ()),
            seed=config.training.seed,
            chunk_size=evaluation.batch_size,
            progress=progress,
            in_flight=in_flight,
        )

    def _times(self, nodes: Tensor) -> Tensor | None:
        column, target = self.config.sampler.time, self.task.node_type
        if column is None:
            return None
        return seed_times(column, {target: nodes}, self.graph.schema, self.graph.features)[target]

    def _nodes(self, split: str) -> Tensor:
        return self.graph.split(getattr(self.config.task, f"{split}_split"))[self.task.node_type]

    def _sampler(self, fanouts: tuple[Fanout, ...]) -> NeighborSampler:
        sampler = self.config.sampler
        return NeighborSampler(
            self.graph,
            fanouts,
            rule=rule_of(sampler),
            expansion=Expansion(sampler.expansion),
        )


def prepare(raw: RawRun, cache: Path, notice: Notice | None = None) -> Run:
    """Check all that can be checked, then make what the run needs; ValueError before anything long starts.

    A built-in graph is unpacked into `cache` when it is first used, which `notice` hears of. Equal runs
    start from equal weights.
    """
    written = checked(raw)
    folder = graph_folder(written, raw, cache, notice)
    config = resolve(written, folder, raw)
    assert config.task.target is not None
    assert config.task.label is not None
    graph = open_graph(folder.path)
    task = NodeClassification(config.task.target, config.task.label, config.task.metric)
    return Run(config, graph, _model(config, graph), task)


def rule_of(sampler: Sampler) -> Rule:
    """How a run draws neighbours."""
    plain = Uniform(sampler.replacement)
    inner = plain if sampler.weight is None else Weighted(sampler.weight, sampler.replacement)
    if sampler.time is None:
        return inner
    window = None if sampler.window is None else (sampler.window[0], sampler.window[1])
    return Temporal(sampler.time, Keep(sampler.keep), window, inner)


def _model(config: RunConfig, graph: Graph) -> Stack:
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    made = seeded(config.training.seed, lambda: _first_model(config, graph))
    return made.to(config.device, dtype)


def _first_model(config: RunConfig, graph: Graph) -> Stack:
    model, layers, task = config.model, config.model.layers, config.task
    assert layers is not None
    sizes = ModelSizes.of(graph, task.target, model.column, task.label, embedding=model.embedding)
    options = (model.hidden, layers, model.dropout, model.norm, model.residual)
    if model.kind == "rgcn":
        return RGCN(sizes, *options, bases=model.bases)
    return SAGE(sizes, *options, encoder=model.encoder)
