"""Runs whose seeds are nodes of one type: node classification, and tasks with another objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.time_split import edges_of_split, time_cut_offs
from khop.config.contexts import TaskContext
from khop.config.run_task import Evaluation
from khop.config.tables import BuiltinTask
from khop.graph.import_record import TimeCutOffs
from khop.inference.chunks import Progress
from khop.inference.evaluation import SplitOutputs, labels_of, scores_of, split_outputs
from khop.inference.predictions import NodePredictions
from khop.sampling.listed import ListedNodes, ids_here
from khop.schema import NodeType
from khop.training.baselines import Constant, HasConstant, constant_of
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
        """Make the loader of training batches; with cut-offs, over the edges before validation."""
        target = self.task.node_type
        seeds = {target: self._listed("train")}
        context = self._context("train")
        return context.loader(context.sampler(), seeds, self.model, {target: [self.task.label]})

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric and the metrics in `beside` on each split.

        One evaluation pass serves all splits. With cut-offs of a split by time, each split has a pass over
        the edges that it may use: training those before `val`, validation those before `test`, test all.
        """
        return self.evaluated(splits, progress, beside).scores

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores and baselines, and keep labels and outputs of the nodes."""
        metrics = [known_metric(name, self.task.metrics) for name in beside]
        found: dict[str, SplitOutputs] = {}
        if self.cut_offs is None:
            found = self._outputs(splits, self.context, progress)
        else:
            for split in splits:
                found |= self._outputs((split,), self._context(split), progress)
        node_type, label = self.task.node_type, self.task.label
        predictions = NodePredictions(node_type, label, self.context.graph.original_ids(node_type), found)
        scores = scores_of(self.task, found, metrics)
        return Evaluation(scores, predictions, self._baselines(found, metrics))

    def _baselines(self, splits: Mapping[str, SplitOutputs], beside: Sequence[str]) -> dict[str, float]:
        """Compute the metrics of the constant prediction on each split; {} if the task states none."""
        found: dict[str, float] = {}
        for split, of_split in splits.items():
            constant = self._constant(of_split.outputs.shape[1])
            if constant is None:
                continue
            outputs = constant.output.expand(of_split.nodes.numel(), -1)
            for metric in dict.fromkeys((self.task.metric, *beside)):
                score = self.task.score(outputs, of_split.labels, of_split.nodes, metric)
                found[f"{split}/{constant.name}/{metric}"] = score
        return found

    def _constant(self, outputs: int) -> Constant | None:
        if not isinstance(self.task, HasConstant):
            return None
        return constant_of(self.task, self._training_labels, outputs)

    @cached_property
    def _training_labels(self) -> Tensor:
        """The labels of the training split, as stored: (nodes, ...). Collective."""
        return labels_of(self.task, self.context.graph.features, ids_here(self._listed("train")))

    def _outputs(
        self, splits: tuple[str, ...], context: TaskContext, progress: Progress
    ) -> dict[str, SplitOutputs]:
        nodes = {split: ids_here(self._listed(split)) for split in splits}
        node_type = self.task.node_type

        def outputs(ids: Tensor) -> Tensor:
            return context.outputs(self.model, node_type, ids, progress)

        return split_outputs(self.task, context.graph.features, nodes, outputs)

    @cached_property
    def cut_offs(self) -> TimeCutOffs | None:
        """The cut-offs that the graph records; None if it is not split by time."""
        return time_cut_offs(self.context.graph)

    def _context(self, split: str) -> TaskContext:
        return replace(self.context, graph=edges_of_split(self.context.graph, split))

    def _listed(self, split: str) -> Tensor | ListedNodes:
        name = getattr(self.context.config.task, f"{split}_split")
        return self.context.graph.split(name)[self.task.node_type]


def node_classification(options: BuiltinTask, context: TaskContext) -> NodeTask:
    """Make the task of predicting a class per node."""
    assert options.target is not None
    assert options.label is not None
    metric = known_metric(options.metric, METRICS)
    return NodeTask.of(context, NodeClassification(options.target, options.label, metric))
