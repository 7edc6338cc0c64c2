"""Tasks over nodes of one type: classification, regression, multi-label classification, custom objectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.split_links import edges_of_split, time_cut_offs
from khop.components import Default
from khop.graph.folder import TimeCutOffs
from khop.graph.node_ids import LABEL
from khop.inference.chunks import Progress
from khop.inference.evaluation import ScoredNodes, SplitOutputs, labels_of, scores_of, split_outputs
from khop.inference.predictions import LabelKind, NodePredictions
from khop.models.stack import Stack
from khop.run.contexts import Evaluation, TaskContext
from khop.run.tasks.resolve_task import (
    ClassOptions,
    NumberOptions,
    resolved_classes,
    resolved_label_sets,
    resolved_numbers,
    seed_tables_of,
)
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import ListedNodes, ids_here
from khop.schema import NodeType
from khop.training.metrics import METRICS, REGRESSION_METRICS, known_metric
from khop.training.multi_label_metrics import MULTI_LABEL_METRICS
from khop.training.tasks import (
    LabelScale,
    MultiLabelClassification,
    NodeClassification,
    NodeObjective,
    NodeRegression,
    WithMetric,
    class_weights,
    constant_of,
)
from khop.training.trainer_state import content_of

if TYPE_CHECKING:
    from khop.run.seed_tables import SeedTables

SPLITS = ("train", "val", "test")  # names in results; the graph may use other names


@dataclass(frozen=True, eq=False)
class NodeTask:
    """The task of a run over nodes of one type: their labels, and a model with an output for each node."""

    context: TaskContext
    model: nn.Module
    task: NodeObjective
    splits: tuple[str, ...] = SPLITS
    kind: LabelKind = "by dtype"  # of the labels, for predictions
    tables: SeedTables | None = None  # tables of labeled rows; None: seeds are the nodes of splits

    @classmethod
    def of(
        cls,
        context: TaskContext,
        objective: NodeObjective,
        outputs: int | None = None,
        kind: LabelKind = "by dtype",
        around: Callable[[nn.Module], nn.Module] = lambda model: model,
        tables: SeedTables | None = None,
    ) -> NodeTask:
        """Make the task with a new model of `outputs` values per node, by default the label's classes.

        The setting `task.metric` replaces the metric of the objective. `kind` decides how predictions are
        written, by default the dtype of the labels. `around` may change or wrap the model.
        `tables` are the seed tables of the run, if they are open already.
        """
        metric = context.config.task.metric
        if metric is not None and metric not in objective.metrics:
            raise ValueError(f"task.metric is {metric!r}: must be one of {', '.join(objective.metrics)}")
        if metric is not None and metric != objective.metric:
            objective = WithMetric(objective, metric)
        tables = seed_tables_of(context.config, context.graph) if tables is None else tables
        if outputs is None and tables is not None:
            outputs = len(context.config.seeds.classes)
        label = objective.label if outputs is None else None
        sizes = context.sizes(objective.node_type, outputs, label)
        splits = SPLITS if tables is None else tables.splits
        return cls(context, context.model(sizes, around), objective, splits, kind, tables)

    @property
    def whole(self) -> Graph:
        """The graph for inference: the entire graph."""
        return self.context.graph

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node type of the seeds."""
        return (self.task.node_type,)

    @property
    def facts(self) -> dict[str, str]:
        """Digests of the rows to score; those of training are in the state of the loader."""
        if self.tables is None:
            return {}
        rows = {split: self.tables.rows(split) for split in self.splits if split != "train"}
        return {content_of(f"seeds.{split}"): of.digest() for split, of in rows.items()}

    def loader(self) -> Loader:
        """Make the loader of training batches; with cut-offs, over the edges before validation."""
        target = self.task.node_type
        context = self.context if self.cut_offs is None else context_of_split(self.context, "train")
        if self.tables is not None:
            return context.loader(context.sampler(), self.tables.rows("train"), self.model, {})
        seeds = {target: _listed(self.context, target, "train")}
        return context.loader(context.sampler(), seeds, self.model, {target: [self.task.label]})

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric and the metrics in `extra_metrics` on each split.

        One evaluation pass serves all splits. In a graph split by time, each split has a pass over the edges
        that it may use: training those before `val`, validation those before `test`, test all.
        """
        return self.evaluated(splits, progress, extra_metrics).scores

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores and baselines, and keep labels and outputs of the nodes."""
        metrics = [known_metric(name, self.task.metrics) for name in extra_metrics]
        found: dict[str, SplitOutputs] = {}
        if self.cut_offs is None:
            found = self._outputs(splits, self.context, progress)
        else:
            for split in splits:
                found |= self._outputs((split,), context_of_split(self.context, split), progress)
        node_type, label = self.task.node_type, self.task.label
        record = None if self.tables is None else self.tables.record
        predictions = NodePredictions(node_type, label, found, self.kind, record)
        scores = scores_of(self.task, found, metrics)
        return Evaluation(scores, predictions, self._baselines(found, metrics))

    def _baselines(
        self, splits: Mapping[str, SplitOutputs], extra_metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compute the metrics of the constant prediction on each split; {} if the task states none."""
        found: dict[str, float] = {}
        if not hasattr(self.task, "constant"):
            return found
        for split, of_split in splits.items():
            constant = constant_of(self.task, self._training_labels, of_split.outputs.shape[1])
            if constant is None:
                continue
            outputs = constant.output.expand(of_split.nodes.numel(), -1)
            for metric in dict.fromkeys((self.task.metric, *extra_metrics)):
                score = self.task.score(outputs, of_split.labels, of_split.nodes, metric)
                found[f"{split}/{constant.name}/{metric}"] = score
        return found

    @cached_property
    def _training_labels(self) -> Tensor:
        """The labels of the training split, as stored: (nodes, ...). Collective."""
        return training_labels(self.context, self.task, self.tables)

    def _outputs(
        self, splits: tuple[str, ...], context: TaskContext, progress: Progress
    ) -> dict[str, SplitOutputs]:
        node_type = self.task.node_type
        nodes = {split: self._scored(split) for split in splits}

        def outputs(ids: Tensor, times: Tensor | None) -> Tensor:
            return context.outputs(self.model, node_type, ids, progress, times)

        return split_outputs(self.task, context.graph.features, nodes, outputs)

    def _scored(self, split: str) -> ScoredNodes:
        """Return the nodes of a split, or the rows of its table."""
        if self.tables is None:
            return ScoredNodes(ids_here(_listed(self.context, self.task.node_type, split)))
        if split not in self.splits:
            raise ValueError(f"seeds.{split} is not set: the run has tables of {', '.join(self.splits)}")
        return scored_rows(self.tables.rows(split), self.task.node_type)

    def nodes(self, split: str) -> Tensor | ListedNodes:
        """Return the nodes of a split, by its name in results."""
        return _listed(self.context, self.task.node_type, split)

    @cached_property
    def cut_offs(self) -> TimeCutOffs | None:
        """The cut-offs that the graph records; None if it is not split by time, and for rows with dates.

        The date of a row limits its edges, and may be after the cut-offs.
        """
        config = self.context.config
        is_dated = self.tables is not None and config.seeds.time is not None
        return None if is_dated else time_cut_offs(self.context.graph)


class ClassifyNodes:
    """One class per node of a type."""

    Options = ClassOptions

    resolve = staticmethod(resolved_classes)

    @staticmethod
    def build(options: ClassOptions, context: TaskContext) -> NodeTask:
        """Make the task of predicting a class per node."""
        target, label, tables = _labels(context)
        loss, metric = options.class_loss, known_metric(options.metric, METRICS)
        objective = NodeClassification(target, label, metric, loss)
        if options.class_weights == "balanced":
            named = context.config.seeds.classes
            classes = context.graph.schema.column(target, label).num_classes if tables is None else len(named)
            assert classes is not None
            weights = class_weights(training_labels(context, objective, tables), classes)
            objective = replace(objective, loss=replace(loss, weights=weights))
        return NodeTask.of(context, objective, tables=tables)


class RegressNodes:
    """Numbers per node of a type."""

    Options = NumberOptions

    resolve = staticmethod(resolved_numbers)

    @staticmethod
    def build(options: NumberOptions, context: TaskContext) -> NodeTask:
        """Make the task of predicting the numbers of a label per node."""
        target, label, tables = _labels(context)
        metric = known_metric(options.metric, REGRESSION_METRICS)
        width = _width(context, target, label) if tables is None else 1
        scale = LabelScale((0.0,) * width, (1.0,) * width)
        objective = NodeRegression(target, label, options.loss, metric, scale)
        if options.standardize == "train":
            scale = LabelScale.of(training_labels(context, objective, tables))
            objective = replace(objective, scale=scale)

        def in_unit(model: nn.Module) -> nn.Module:
            if options.standardize == "none":
                return model
            if not isinstance(model, Stack):
                raise ValueError(
                    f"task.standardize is 'train': {type(model).__name__} is not a khop model, so its "
                    'outputs cannot be rescaled; set task.standardize = "none", and return outputs in the '
                    "unit of the label"
                )
            model.rescale(scale.mean, scale.deviation)
            return model

        return NodeTask.of(context, objective, width, "numbers", in_unit, tables)


class LabelNodes:
    """Multi-label classification of the nodes of a type."""

    @dataclass(frozen=True)
    class Options:
        """Options of multi-label classification, as set by a run."""

        metric: Annotated[
            Literal["f1-micro", "f1-macro", "roc-auc", "average-precision"] | None, Default("f1-micro")
        ] = None
        """Metric of evaluation"""

    resolve = staticmethod(resolved_label_sets)

    @staticmethod
    def build(options: Options, context: TaskContext) -> NodeTask:
        """Make the task of predicting any number of labels per node."""
        target, label, tables = _labels(context)
        metric = known_metric(options.metric, MULTI_LABEL_METRICS)
        objective = MultiLabelClassification(target, label, metric)
        width = _width(context, target, label) if tables is None else len(context.config.seeds.classes)
        return NodeTask.of(context, objective, width, "sets", tables=tables)


def _labels(context: TaskContext) -> tuple[NodeType, str, SeedTables | None]:
    """Return node type and label of a resolved task, and the seed tables that have the labels."""
    target, label = target_of(context)
    tables = seed_tables_of(context.config, context.graph)
    return target, label if tables is None else LABEL, tables


def target_of(context: TaskContext) -> tuple[str, str]:
    """Return the target and the label of a resolved task."""
    target, label = context.config.task.target, context.config.task.label
    assert target is not None
    assert label is not None
    return target, label


def context_of_split(context: TaskContext, split: str) -> TaskContext:
    """Return the context with the edges that a split may use: all, if the graph has no cut-offs."""
    return replace(context, graph=edges_of_split(context.graph, split))


def scored_rows(table: SeedTable, node_type: NodeType) -> ScoredNodes:
    """Return the rows of a table, to score or to predict."""
    labels, times = ((None if of is None else of[node_type]) for of in (table.labels, table.times))
    return ScoredNodes(table.nodes[node_type], labels, times)


def _listed(context: TaskContext, node_type: NodeType, split: str) -> Tensor | ListedNodes:
    name = getattr(context.config.task, f"{split}_split")
    return context.graph.split(name)[node_type]


def training_labels(context: TaskContext, task: NodeObjective, tables: SeedTables | None = None) -> Tensor:
    """Return the labels of the training split, in its order. Collective if the columns are."""
    if tables is not None:
        labels = tables.rows("train").labels
        assert labels is not None
        return labels[task.node_type]
    nodes = ids_here(_listed(context, task.node_type, "train"))
    return labels_of(task, context.graph.features, nodes)


def _width(context: TaskContext, node_type: NodeType, label: str) -> int:
    return math.prod(context.graph.schema.column(node_type, label).shape)
