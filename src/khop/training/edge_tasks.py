"""Tasks over edges of one type with labels that come with the links: classification and regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from khop.arguments import check_word, instance_of
from khop.batch import Batch
from khop.kernels.choice import Engine, engine
from khop.schema import EdgeType, edge_type_of
from khop.training.baselines import Constant
from khop.training.class_loss import CROSS_ENTROPY, ClassLoss
from khop.training.metrics import METRICS, NodeMetric, known_metric
from khop.training.number_metrics import REGRESSION_METRICS, RegressionMetric
from khop.training.ranking import LOOK_FOR_NAN
from khop.training.regression import UNSCALED, LabelScale, RegressionLoss, number_losses, number_rows
from khop.training.tasks import Task


@runtime_checkable
class EdgeObjective(Task, Protocol):
    """Loss and metrics of a task over edges of one type with a column of labels."""

    @property
    def edge_type(self) -> EdgeType:
        """The edge type of the links."""
        ...

    @property
    def label(self) -> str:
        """The edge column of labels."""
        ...

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        ...

    def score(self, outputs: Tensor, labels: Tensor, edges: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's; outputs and labels have a row per edge, `edges` (2, n)."""
        ...

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the best constant prediction for the labels of training; None if there is none."""
        ...


@dataclass(frozen=True)
class EdgeClassification:
    """Task: predict one class per edge of one type, trained by cross-entropy or focal loss.

    Labels come with the links (`khop.split_links(label=...)`). Edges with label -1 are unknown: their loss is
    0, and scores leave them out.
    """

    edge_type: EdgeType  # ("user", "rates", "item"), or "user rates item"
    label: str  # integer column of the edge type, 0 <= label < classes; -1 means unknown
    metric: NodeMetric = "accuracy"
    loss: ClassLoss = CROSS_ENTROPY

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_type", edge_type_of(self.edge_type))
        instance_of("loss", self.loss, ClassLoss, "must be a khop.ClassLoss, as khop.ClassLoss('focal')")
        known_metric(self.metric, METRICS)

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(METRICS)

    def losses(self, output: Mapping[EdgeType, Tensor], batch: Batch) -> Tensor:
        """Return (links): the loss of each link, 0 if its label is -1.

        ValueError names an edge with a label out of range. On a device its loss is NaN instead: an error
        would wait for all queued work.
        """
        logits, labels = output[self.edge_type], link_labels(batch, self.edge_type, self.label)
        classes = logits.shape[1]
        losses = self.loss.of(logits, labels.long().clamp(0, classes - 1)).masked_fill(labels == -1, 0.0)
        if engine(logits.device) is not Engine.NATIVE:
            return losses.masked_fill((labels < -1) | (labels >= classes), torch.nan)
        self._check(labels, classes, batch_edges(batch, self.edge_type))
        return losses

    def score(self, outputs: Tensor, labels: Tensor, edges: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's, over the edges with known labels.

        ValueError names an edge with a label out of range or a NaN output, and if no label is known.
        """
        name = known_metric(metric or self.metric, METRICS)
        check_edge_outputs(outputs, edges, self.edge_type, name)
        self._check(labels, outputs.shape[1], edges)
        known = labels >= 0
        if not known.any():
            raise ValueError(f"{name}: no edge of {self.edge_type} has a known {self.label}, it needs one")
        return METRICS[name](outputs[known], labels[known].long())

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the most frequent class of the labels; None if no label is known."""
        return Constant.majority(labels, outputs)

    def _check(self, labels: Tensor, classes: int, edges: Tensor) -> None:
        wrong = (labels < -1) | (labels >= classes)
        if wrong.any():
            first = int(wrong.nonzero()[0])
            source, destination = edges[:, first].tolist()
            raise ValueError(
                f"edge from {source} to {destination} of {self.edge_type} has {self.label} "
                f"{int(labels[first])}: must be 0 to {classes - 1}, or -1 for unknown; correct the label, or "
                "give the model more outputs"
            )


@dataclass(frozen=True)
class EdgeRegression:
    """Task: predict the numbers of a label for edges of one type, by squared ("mse") or absolute error.

    Labels come with the links (`khop.split_links(label=...)`). Outputs are in the unit of the label; the loss
    divides errors by the deviation of `scale`. Unknown numbers, NaN in `khop.Links(labels=...)`, are
    skipped, as in `NodeRegression`.
    """

    edge_type: EdgeType  # ("user", "rates", "item"), or "user rates item"
    label: str  # edge column of numbers, (edges) or (edges, numbers)
    loss: RegressionLoss = "mse"
    metric: RegressionMetric = "rmse"
    scale: LabelScale = UNSCALED

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_type", edge_type_of(self.edge_type))
        check_word("loss", self.loss, RegressionLoss)
        known_metric(self.metric, REGRESSION_METRICS)
        remedy = "must be a khop.LabelScale, as khop.LabelScale.of(labels)"
        instance_of("scale", self.scale, LabelScale, remedy)

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(REGRESSION_METRICS)

    def losses(self, output: Mapping[EdgeType, Tensor], batch: Batch) -> Tensor:
        """Return (links): the error of each link in units of the deviation, 0 if no number is known."""
        labels = link_labels(batch, self.edge_type, self.label)
        return number_losses(output[self.edge_type], labels, self.loss, self.scale, self._column)

    def score(self, outputs: Tensor, labels: Tensor, edges: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's, over the edges with known labels.

        ValueError names an edge with a NaN output, and if no label is known.
        """
        name = known_metric(metric or self.metric, REGRESSION_METRICS)
        check_edge_outputs(outputs, edges, self.edge_type, name)
        rows = number_rows(labels, outputs, self._column).double()
        if bool(rows.isnan().all()):
            raise ValueError(f"{name}: no edge of {self.edge_type} has a known {self.label}, it needs one")
        return REGRESSION_METRICS[name](outputs, rows)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the mean of the labels; None if no label is known."""
        return Constant.mean(labels)

    @property
    def _column(self) -> str:
        return f"{self.label} of {self.edge_type}"


def link_labels(batch: Batch, edge_type: EdgeType, label: str) -> Tensor:
    """Return (links, ...): the labels of a batch's links; ValueError if the links were given none."""
    labels = batch.links[edge_type].labels
    if labels is None:
        raise ValueError(
            f"links of {edge_type} have no labels: give them the column, as khop.split_links(graph, "
            f"{' '.join(edge_type)!r}, label={label!r}) does, and the LinkSampler no negatives"
        )
    return labels


def batch_edges(batch: Batch, edge_type: EdgeType) -> Tensor:
    """Return int64 (2, links): global ids of a batch's links, sources over destinations."""
    links = batch.links[edge_type]
    ends = ((edge_type[0], links.source), (edge_type[2], links.destination))
    nodes, index = batch.sample.nodes, batch.sample.seed_index
    return torch.stack([nodes[t][index[t][rows]] for t, rows in ends])


def check_edge_outputs(outputs: Tensor, edges: Tensor, edge_type: EdgeType, metric: str) -> None:
    """Raise ValueError, naming the first edge, if an output is NaN."""
    wrong = outputs.isnan().any(dim=1)
    if wrong.any():
        source, destination = edges[:, wrong][:, 0].tolist()
        raise ValueError(
            f"{metric}: the model's output for the edge from {source} to {destination} of {edge_type} is "
            f"NaN, and so for {int(wrong.sum()):,} of {outputs.shape[0]:,} edges: no score can be given; "
            f"{LOOK_FOR_NAN}"
        )
