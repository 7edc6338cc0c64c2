"""Runs whose seeds are nodes of one type: node classification, and tasks with another objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.config.contexts import TaskContext
from khop.config.tables import BuiltinTask
from khop.inference.chunks import Progress
from khop.inference.evaluation import scores
from khop.sampling.listed import ListedNodes, ids_here
from khop.schema import NodeType
from khop.training.metrics import METRICS, known_metric
from khop.training.tasks import NodeClassification, NodeObjective, WithMetric

SPLITS = ("train", "val", "test")  # names in results; the graph may use other names


@dataclass(frozen=True, eq=False)
class NodeTask:
    """The task of a run over nodes of one type: their labels, and a model with an output for each node."""

    context: TaskContext
    model: nn.Module
    task: NodeObjective
    splits: tuple[str, ...] = SPLITS

    @classmethod
    def of(cls, context: TaskContext, objective: NodeObjective, outputs: int | None = None) -> NodeTask:
        """Make the task with a new model of `outputs` values per node, by default the label's classes.

        The setting `task.metric` replaces the metric of the objective.
        """
        metric = context.config.task.metric
        if metric is not None and metric not in objective.metrics:
            raise ValueError(f"task.metric is {metric!r}: must be one of {', '.join(objective.metrics)}")
        if metric is not None and metric != objective.metric:
            objective = WithMetric(objective, metric)
        label = objective.label if outputs is None else None
        sizes = context.sizes(objective.node_type, outputs, label)
        return cls(context, context.model(sizes), objective)

    @property
    def whole(self) -> Graph:
        """The graph for inference: the entire graph."""
        return self.context.graph

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node type of the seeds."""
        return (self.task.node_type,)

    def loader(self) -> Loader:
        """Make the loader of training batches."""
        target = self.task.node_type
        seeds = {target: self._listed("train")}
        return self.context.loader(self.context.sampler(), seeds, self.model, {target: [self.task.label]})

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric and the metrics in `beside` on each split, in one evaluation pass."""
        metrics = [known_metric(name, self.task.metrics) for name in beside]
        nodes = {split: ids_here(self._listed(split)) for split in splits}
        features = self.context.graph.features
        return scores(self.task, features, nodes, lambda ids: self._outputs(ids, progress), metrics)

    def _outputs(self, nodes: Tensor, progress: Progress) -> Tensor:
        return self.context.outputs(self.model, self.task.node_type, nodes, progress)

    def _listed(self, split: str) -> Tensor | ListedNodes:
        name = getattr(self.context.config.task, f"{split}_split")
        return self.context.graph.split(name)[self.task.node_type]


def node_classification(options: BuiltinTask, context: TaskContext) -> NodeTask:
    """Make the task of predicting a class per node."""
    assert options.target is not None
    assert options.label is not None
    metric = known_metric(options.metric, METRICS)
    return NodeTask.of(context, NodeClassification(options.target, options.label, metric))
