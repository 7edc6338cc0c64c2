"""Training tasks: their labels, loss per seed and score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from khop.arguments import instance_of
from khop.batch import Batch
from khop.kernels.choice import Engine, engine
from khop.schema import NodeType, Schema
from khop.training.baselines import Constant, constant_of
from khop.training.class_loss import CROSS_ENTROPY, ClassLoss
from khop.training.metrics import METRICS, NodeMetric, check_outputs, known_metric


class Task(Protocol):
    """Interface of a task to the trainer."""

    @property
    def metric(self) -> str:
        """Name of the metric of its scores: "accuracy", "roc-auc".

        Lower is better for "rmse" and "mae", also of a task from outside, and higher for all others.
        """
        ...

    def losses(self, output: Any, batch: Batch) -> Tensor:  # noqa: ANN401
        """Return one loss per seed, or per pair of links; their mean over the global batch is minimized.

        `output` is the model's output for the batch.
        """
        ...


@runtime_checkable
class NodeObjective(Task, Protocol):
    """Loss and metrics of a task over nodes of one type with a column of labels."""

    @property
    def node_type(self) -> NodeType:
        """The node type of the seeds."""
        ...

    @property
    def label(self) -> str:
        """The column of labels."""
        ...

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        ...

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's, over `nodes`; outputs and labels have one row per node."""
        ...


@dataclass(frozen=True)
class WithMetric:
    """An objective with another one of its metrics."""

    inner: NodeObjective
    metric: str

    @property
    def node_type(self) -> NodeType:
        """The node type of the seeds."""
        return self.inner.node_type

    @property
    def label(self) -> str:
        """The column of labels."""
        return self.inner.label

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return self.inner.metrics

    def losses(self, output: Any, batch: Batch) -> Tensor:  # noqa: ANN401
        """Return one loss per seed."""
        return self.inner.losses(output, batch)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default this one, over `nodes`."""
        return self.inner.score(output, labels, nodes, metric or self.metric)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the constant prediction of the objective, if it states one."""
        return constant_of(self.inner, labels, outputs)


def score_name(score: str, metric: str) -> str:
    """Return the name of a score in records: "val" with metric "accuracy" becomes "val_accuracy".

    An additional metric is part of the score's name, as in "val/roc-auc".
    """
    return (score if "/" in score else f"{score}/{metric}").replace("/", "_").replace("-", "_")


@dataclass(frozen=True)
class NodeClassification:
    """Task: predict one class per node of one type, trained by cross-entropy or focal loss."""

    node_type: NodeType
    label: str  # integer column of the node type, 0 <= label < classes; -1 means unknown
    metric: NodeMetric = "accuracy"
    loss: ClassLoss = CROSS_ENTROPY

    def __post_init__(self) -> None:
        instance_of("loss", self.loss, ClassLoss, "must be a khop.ClassLoss, as khop.ClassLoss('focal')")
        if self.metric not in METRICS:
            raise ValueError(f"metric {self.metric!r}: must be one of {sorted(METRICS)}")

    @classmethod
    def of(
        cls, schema: Schema, node_type: NodeType | None = None, label: str | None = None
    ) -> NodeClassification:
        """Make a task with accuracy; node type and label default to the only ones of the schema."""
        instance_of("schema", schema, Schema, "must be a graph's schema, as graph.schema")
        return cls(*schema.label_column(node_type, label))

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(METRICS)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return (seeds): the loss of each seed; ValueError names a seed without a valid label.

        On a device its loss is NaN instead: an error would wait for all queued work.
        """
        labels = batch.seed_column(self.label, self.node_type)
        if engine(output.device) is not Engine.NATIVE:
            classes = output.shape[1]
            losses = self.loss.of(output, labels.long().clamp(0, classes - 1))
            return losses.masked_fill((labels < 0) | (labels >= classes), torch.nan)
        checked = self._checked(labels, batch.seed_nodes[self.node_type], output)
        return self.loss.of(output, checked)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's, over `nodes`; outputs and labels have one row per node.

        ValueError names a node without a valid label, or a node with a NaN output.
        """
        check_outputs(output, nodes, self.node_type, metric or self.metric)
        return METRICS[known_metric(metric or self.metric, METRICS)](
            output, self._checked(labels, nodes, output)
        )

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the most frequent class of the labels; None if no label is known."""
        return Constant.majority(labels, outputs)

    def _checked(self, labels: Tensor, nodes: Tensor, output: Tensor) -> Tensor:
        classes = output.shape[1]
        wrong = (labels < 0) | (labels >= classes)
        if wrong.any():
            first = int(wrong.nonzero()[0])
            raise ValueError(
                f"node {int(nodes[first])} of {self.node_type!r} has {self.label} {int(labels[first])}: "
                f"must be 0 to {classes - 1}; leave it out of the seeds or correct its label"
            )
        return labels.long()
