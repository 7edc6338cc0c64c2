"""Tasks over nodes: labels, losses, scores and baselines without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.arguments import check_word, instance_of, real_number, whole_number
from khop.batch import Batch
from khop.graph.inputs import tensor_of
from khop.kernels.choice import Engine, engine
from khop.kernels.segment import segment_sum
from khop.schema import NodeType, Schema
from khop.training.metrics import (
    METRICS,
    REGRESSION_METRICS,
    NodeMetric,
    RegressionMetric,
    check_outputs,
    known_metric,
)
from khop.training.multi_label_metrics import MULTI_LABEL_METRICS, UNKNOWN, MultiLabelMetric, entries_of

ConstantName = Literal["majority", "mean"]
POPULARITY, OWN_FEATURES, LABEL_PROPAGATION = "popularity", "own-features", "label-propagation"
BASELINES = (*get_args(ConstantName), POPULARITY, OWN_FEATURES, LABEL_PROPAGATION)


@dataclass(frozen=True, eq=False)
class Constant:
    """A prediction that is the same for every node: a baseline.

    Args:
        name: "majority" or "mean".
        output: Output for one node, (outputs), in the form of a model's output.
    Raises:
        ValueError: `name` is neither "majority" nor "mean", or `output` is not a tensor.
    Example:
        >>> khop.Constant.majority(torch.tensor([0, 2, 2]), classes=3).output
        tensor([0., 0., 1.])
    """

    name: ConstantName
    output: Tensor

    def __post_init__(self) -> None:
        check_word("name", self.name, ConstantName)
        instance_of("output", self.output, Tensor, "give a tensor (outputs)")

    @classmethod
    def majority(cls, labels: Tensor, classes: int) -> Constant | None:
        """Return the most frequent class, the lowest one in a tie; None if no label is known.

        Args:
            labels: Labels, int (n). Labels outside 0 to `classes` - 1 are unknown and do not count.
            classes: Number of classes.
        """
        _check_labels(labels)
        known = labels[(labels >= 0) & (labels < whole_number("classes", classes, 1))].long()
        if known.numel() == 0:
            return None
        output = torch.zeros(classes)
        output[torch.bincount(known, minlength=classes).argmax()] = 1
        return cls("majority", output)

    @classmethod
    def majorities(cls, entries: Tensor) -> Constant | None:
        """Return the labels that more than half of the known entries have: 1 for them, -1 for the others.

        None if no entry is known.

        Args:
            entries: Entries, int (n, labels): 1 for a label, 0 for none; negative numbers are unknown.
        """
        _check_labels(entries)
        known = entries >= 0
        if not bool(known.any()):
            return None
        is_majority = 2 * (entries > 0).sum(0) > known.sum(0)
        return cls("majority", is_majority.float() * 2 - 1)

    @classmethod
    def mean(cls, labels: Tensor) -> Constant | None:
        """Return the mean of each column of the labels; None if a column has no known number.

        Args:
            labels: Labels, float (n) or (n, outputs); NaN does not count.
        """
        _check_labels(labels)
        rows = labels.double().flatten(1) if labels.dim() > 1 else labels.double().unsqueeze(1)
        mean = rows.nanmean(0)
        return cls("mean", mean) if mean.numel() and not bool(mean.isnan().any()) else None


def constant_of(objective: object, labels: Tensor, outputs: int) -> Constant | None:
    """Return the best constant prediction for the training labels; None if the objective has none.

    `outputs` is the number of the model's outputs per node. An objective defines the prediction by a method
    `constant(labels, outputs)`.
    """
    stated: Callable[[Tensor, int], Constant | None] | None = getattr(objective, "constant", None)
    return None if stated is None else stated(labels, outputs)


def _check_labels(labels: Tensor) -> None:
    instance_of("labels", labels, Tensor, "give a tensor with one row per node")
    if labels.dim() == 0:
        raise ValueError("labels: has no rows; give a tensor with one row per node")


@dataclass(frozen=True)
class MultiLabelClassification:
    """Task: multi-label classification of nodes of one type, with binary cross-entropy per label.

    An output above 0 predicts the label. Unknown entries are skipped: a seed's loss is the mean over its
    known entries, and 0 if there are none.

    Args:
        node_type: Node type of the seeds.
        label: Column (nodes, labels) of 1 and 0; negative numbers, NaN and 255 of uint8 are unknown.
        metric: Metric of scores, default "f1-micro".
    Raises:
        ValueError: There is no such metric.
    Example:
        >>> task = khop.MultiLabelClassification("item", "tags")
        >>> task.score(torch.tensor([[1.0, -1.0]]), torch.tensor([[1, 0]]), nodes=torch.tensor([0]))
        1.0
    """

    node_type: NodeType
    label: str
    metric: MultiLabelMetric = "f1-micro"

    def __post_init__(self) -> None:
        known_metric(self.metric, MULTI_LABEL_METRICS)

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(MULTI_LABEL_METRICS)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return (seeds): the mean cross-entropy over the known entries of each seed.

        Args:
            output: Outputs of the model (seeds, labels).
            batch: The batch, with the column of labels in its seed columns.
        """
        rows = output.to(torch.promote_types(output.dtype, torch.float32))
        entries = self._entries(batch.seed_column(self.label, self.node_type), rows)
        known = entries != UNKNOWN
        targets = (entries == 1).to(rows.dtype)
        losses = F.binary_cross_entropy_with_logits(rows, targets, reduction="none")
        return (losses * known).sum(1) / known.sum(1).clamp(min=1)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric over the known entries.

        Args:
            output: Outputs of the model (n, labels).
            labels: Labels (n, labels).
            nodes: Global ids, int64 (n), for errors.
            metric: Metric, by default the task's.
        Raises:
            ValueError: An output is NaN, or no entry is known.
        """
        name = known_metric(metric or self.metric, MULTI_LABEL_METRICS)
        check_outputs(output, nodes, self.node_type, name)
        entries = self._entries(labels, output)
        if bool((entries == UNKNOWN).all()):
            raise ValueError(
                f"{name}: no node of {self.node_type!r} has a known {self.label}, one is required"
            )
        return MULTI_LABEL_METRICS[name](output, entries)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the labels that most nodes with a known entry have; None if no entry is known.

        Args:
            labels: Labels of training (n, labels).
            outputs: Number of outputs of the model.
        """
        return Constant.majorities(entries_of(labels))

    def _entries(self, labels: Tensor, output: Tensor) -> Tensor:
        if labels.shape != output.shape:
            raise ValueError(
                f"{self.label} of {self.node_type!r} has shape {tuple(labels.shape)}, but the model's output "
                f"has {tuple(output.shape)}: give the model one output per label"
            )
        return entries_of(labels)


_KEPT = 64  # tensors: a process has a few tasks


@lru_cache(maxsize=_KEPT)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return some numbers as a shared tensor (values), which must not be changed.

    The first call copies them to the device and synchronizes. Later calls return the same tensor, so recorded
    steps can read it.
    """
    return torch.tensor(values, dtype=dtype, device=device)


RegressionLoss = Literal["mse", "mae"]


@dataclass(frozen=True)
class LabelScale:
    """Mean and standard deviation of each value of a label; (0, 1) does not change labels.

    Args:
        mean: Mean of each number, default 0.
        deviation: Standard deviation of each number, above 0; default 1.
    Raises:
        ValueError: The lengths differ, or a deviation is not positive.
    Example:
        >>> khop.LabelScale.of(torch.tensor([3.0, 5.0, float("nan")]))
        LabelScale(mean=(4.0,), deviation=(1.0,))
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.deviation) or not min(self.deviation) > 0:
            raise ValueError(
                f"scale with mean {self.mean} and deviation {self.deviation}: must have equal lengths, and "
                "deviations above 0"
            )

    @classmethod
    def of(cls, labels: Tensor) -> LabelScale:
        """Compute the scale of labels in float64; NaN is left out.

        Sums are in the order of the rows, so the result does not depend on threads or partitions. A constant
        value has deviation 1.

        Args:
            labels: Labels (n) or (n, numbers).
        Raises:
            ValueError: No label is known.
        """
        labels = tensor_of("labels", labels, "give numbers, as graph.columns has them")
        rows = labels.detach().cpu().double().reshape(labels.shape[0], -1).numpy()
        known = [column[~np.isnan(column)] for column in rows.T]
        if not all(column.size for column in known):
            raise ValueError("labels: none is known; a scale needs at least one known label of each value")
        mean = tuple(float(column.mean()) for column in known)
        return cls(mean, tuple(float(column.std()) if np.ptp(column) else 1.0 for column in known))


UNSCALED = LabelScale()


@dataclass(frozen=True)
class NodeRegression:
    """Task: regression of a label of nodes of one type.

    Outputs are in the unit of the label. Unknown numbers, NaN, are skipped: a seed's loss is the mean
    over its known numbers, and 0 if there are none.

    Args:
        node_type: Node type of the seeds.
        label: Column of numbers, (nodes) or (nodes, numbers); NaN means unknown.
        loss: "mse" (default), squared error, or "mae", absolute error.
        metric: Metric of scores, default "rmse".
        scale: Scale of the labels: the loss divides errors by its deviation; let the model multiply by it
            too (`rescale`). Default: no scale.
    Raises:
        ValueError: There is no such loss or metric.
    Example:
        >>> task = khop.NodeRegression("item", "price", scale=khop.LabelScale.of(torch.tensor([3.0, 5.0])))
        >>> task.score(torch.tensor([[4.0]]), torch.tensor([3.0]), nodes=torch.tensor([0]))
        1.0
    """

    node_type: NodeType
    label: str
    loss: RegressionLoss = "mse"
    metric: RegressionMetric = "rmse"
    scale: LabelScale = LabelScale()

    def __post_init__(self) -> None:
        check_word("loss", self.loss, RegressionLoss)
        known_metric(self.metric, REGRESSION_METRICS)
        instance_of(
            "scale", self.scale, LabelScale, "must be a khop.LabelScale, as khop.LabelScale.of(labels)"
        )

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(REGRESSION_METRICS)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return (seeds): the error of each seed in units of the deviation.

        Args:
            output: Outputs of the model (seeds, numbers).
            batch: The batch, with the column of labels in its seed columns.
        """
        labels = batch.seed_column(self.label, self.node_type)
        return number_losses(output, labels, self.loss, self.scale, self._column)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric over the nodes with known labels.

        Args:
            output: Outputs of the model (n, numbers).
            labels: Labels (n) or (n, numbers).
            nodes: Global ids, int64 (n), for errors.
            metric: Metric, by default the task's.
        Raises:
            ValueError: An output is NaN, or no label is known.
        """
        name = known_metric(metric or self.metric, REGRESSION_METRICS)
        check_outputs(output, nodes, self.node_type, name)
        rows = number_rows(labels, output, self._column).double()
        if bool(rows.isnan().all()):
            raise ValueError(
                f"{name}: no node of {self.node_type!r} has a known {self.label}, one is required"
            )
        return REGRESSION_METRICS[name](output, rows)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the mean of the labels; None if no label is known.

        Args:
            labels: Labels of training.
            outputs: Number of outputs of the model.
        """
        return Constant.mean(labels)

    @property
    def _column(self) -> str:
        return f"{self.label} of {self.node_type!r}"


def number_losses(
    output: Tensor, labels: Tensor, loss: RegressionLoss, scale: LabelScale, column: str
) -> Tensor:
    """Return (rows): the error of each row in units of the deviation, over its known numbers.

    `column` names the labels in errors.
    """
    rows = output.to(torch.promote_types(output.dtype, torch.float32))
    labels = number_rows(labels, rows, column)
    known = ~labels.isnan()
    deviation = constant(scale.deviation, rows.dtype, rows.device)
    errors = (rows - torch.where(known, labels.to(rows.dtype), rows.detach())) / deviation
    of_numbers = errors.square() if loss == "mse" else errors.abs()
    return of_numbers.sum(1) / known.sum(1).clamp(min=1)


def number_rows(labels: Tensor, output: Tensor, column: str) -> Tensor:
    """Return labels as (n, numbers); ValueError if the model gives another number of outputs."""
    rows = labels.flatten(1) if labels.dim() > 1 else labels.unsqueeze(1)
    if not rows.is_floating_point():
        rows = rows.double()
    if rows.shape != output.shape:
        raise ValueError(
            f"{column} has {rows.shape[1]} values per row, but the model's output has "
            f"shape {tuple(output.shape)}: give the model outputs={rows.shape[1]}"
        )
    return rows


ClassLossKind = Literal["cross-entropy", "focal"]


@dataclass(frozen=True)
class ClassLoss:
    """Loss of a seed: the class weight times cross-entropy or focal loss.

    Args:
        kind: "cross-entropy" (default), or "focal" (Lin et al. 2017), which multiplies the cross-entropy
            by (1 - p)^`gamma`, with p the probability of the label.
        weights: Weight of each class. Losses are not divided by the sum of weights in a batch, which would
            depend on the ranks; see `class_weights`. Default None: 1 for all.
        smoothing: Label smoothing s: training on 1 - s for the label plus s / classes for every class
            (Szegedy et al. 2016). At least 0 and below 1; default 0.
        gamma: Focusing parameter of the focal loss, default 2.
    Raises:
        ValueError: A number is out of its range.
    Example:
        >>> loss = khop.ClassLoss("focal", smoothing=0.1)
        >>> task = khop.NodeClassification("package", "section", loss=loss)
    """

    kind: ClassLossKind = "cross-entropy"
    weights: tuple[float, ...] | None = None
    smoothing: float = 0.0
    gamma: float = 2.0

    def __post_init__(self) -> None:
        check_word("loss", self.kind, ClassLossKind)
        if not 0 <= real_number("smoothing", self.smoothing) < 1:
            raise ValueError(f"smoothing {self.smoothing}: must be at least 0 and below 1")
        if not 0 <= real_number("gamma", self.gamma) < 1000:
            raise ValueError(f"gamma {self.gamma}: must be at least 0 and below 1000")
        for weight in self.weights or ():
            if not 0 <= real_number("class weight", weight) < float("inf"):
                raise ValueError(f"class weight {weight}: must be 0 or more, and finite")

    def of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (n): one loss per row.

        Args:
            logits: Logits (n, classes).
            labels: Labels, int64 (n).
        """
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
        if self.kind == "focal":
            label = F.cross_entropy(logits, labels, reduction="none") if self.smoothing else losses
            # 1 - p without cancellation; its power has no gradient at 0, where p is 1.
            losses = (-torch.expm1(-label)).clamp(min=1e-12).pow(self.gamma) * losses
        if self.weights is None:
            return losses
        if len(self.weights) != logits.shape[1]:
            raise ValueError(
                f"class weights {self.weights}: there are {logits.shape[1]} classes; give one weight for each"
            )
        weights = constant(self.weights, losses.dtype, losses.device)
        return losses * weights.index_select(0, labels)


CROSS_ENTROPY = ClassLoss()


def class_weights(labels: Tensor, classes: int, weights: Sequence[float] | None = None) -> tuple[float, ...]:
    """Compute a weight per class, scaled so that the mean over the labels is 1.

    Args:
        labels: Labels of the whole training split, int (n); -1 is left out.
        classes: Number of classes.
        weights: Weights to scale, one per class. By default they are balanced: inverse to the number of
            labels of a class, and 0 for a class without one.
    Returns:
        The weights, for `khop.ClassLoss`.
    Raises:
        ValueError: A label is out of range, or the weights do not fit.
    Example:
        >>> khop.class_weights(torch.tensor([0, 0, 0, 1]), classes=2)
        (0.6666666666666666, 2.0)
    """
    labels = tensor_of("labels", labels, "give whole numbers, as graph.columns has them")
    if labels.is_floating_point():
        raise ValueError(f"labels: {labels.dtype}; give whole numbers, as graph.columns has them")
    counts = torch.bincount(labels[labels >= 0].long(), minlength=classes).double()
    if counts.numel() != classes:
        raise ValueError(f"labels: {int(labels.max())} must be below the number of classes, {classes}")
    if weights is None:
        given = torch.where(counts > 0, 1 / counts, 0.0)
    else:
        given = torch.tensor(list(weights), dtype=torch.float64)
        if given.numel() != classes or not bool((given >= 0).all()):
            raise ValueError(
                f"class weights {list(weights)}: give {classes} numbers of 0 or more, one for each class"
            )
    total = float((given * counts).sum())
    if not 0 < total < float("inf"):
        raise ValueError("class weights: no label of the split has a weight above 0; give other weights")
    return tuple((given * (float(counts.sum()) / total)).tolist())


class Task(Protocol):
    """Interface of a task to the trainer."""

    @property
    def metric(self) -> str:
        """Name of the metric of its scores: "accuracy", "roc-auc".

        Lower is better for "rmse" and "mae", also in custom tasks, and higher for all others.
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
    """An objective with another of its metrics as the default."""

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
        """Return the constant prediction of the objective, if it has one."""
        return constant_of(self.inner, labels, outputs)


def score_name(score: str, metric: str) -> str:
    """Return the name of a score in records: "val" with metric "accuracy" becomes "val_accuracy".

    An additional metric is part of the score's name, as in "val/roc-auc".
    """
    return (score if "/" in score else f"{score}/{metric}").replace("/", "_").replace("-", "_")


@dataclass(frozen=True)
class NodeClassification:
    """Task: predict one class per node of one type.

    Args:
        node_type: Node type of the seeds.
        label: Integer column of the node type, 0 <= label < classes; -1 means unknown.
        metric: Metric of scores, default "accuracy".
        loss: Cross-entropy (default) or focal loss.
    Raises:
        ValueError: There is no such metric.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> task = khop.NodeClassification.of(graph.schema)
        >>> task.node_type, task.label
        ('package', 'section')
    """

    node_type: NodeType
    label: str
    metric: NodeMetric = "accuracy"
    loss: ClassLoss = CROSS_ENTROPY

    def __post_init__(self) -> None:
        instance_of("loss", self.loss, ClassLoss, "must be a khop.ClassLoss, such as khop.ClassLoss('focal')")
        if self.metric not in METRICS:
            raise ValueError(f"metric {self.metric!r}: must be one of {sorted(METRICS)}")

    @classmethod
    def of(
        cls, schema: Schema, node_type: NodeType | None = None, label: str | None = None
    ) -> NodeClassification:
        """Make a task with accuracy.

        Args:
            schema: Schema of the graph.
            node_type: Node type, by default the only one with labels.
            label: Label column, by default the only one of the type.
        """
        instance_of("schema", schema, Schema, "must be a graph's schema, such as graph.schema")
        return cls(*schema.label_column(node_type, label))

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(METRICS)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return (seeds): the loss of each seed.

        On a device, the loss of a seed without a valid label is NaN, because an error would need a
        synchronization.

        Args:
            output: Logits (seeds, classes).
            batch: The batch, with the column of labels in its seed columns.
        Raises:
            ValueError: A seed has no valid label.
        """
        labels = batch.seed_column(self.label, self.node_type)
        if engine(output.device) is not Engine.NATIVE:
            classes = output.shape[1]
            losses = self.loss.of(output, labels.long().clamp(0, classes - 1))
            return losses.masked_fill((labels < 0) | (labels >= classes), torch.nan)
        checked = self._checked(labels, batch.seed_nodes[self.node_type], output)
        return self.loss.of(output, checked)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric over some nodes.

        Args:
            output: Logits (n, classes).
            labels: Labels, int (n).
            nodes: Global ids, int64 (n), for errors.
            metric: Metric, by default the task's.
        Raises:
            ValueError: A node has no valid label, or a NaN output.
        """
        check_outputs(output, nodes, self.node_type, metric or self.metric)
        return METRICS[known_metric(metric or self.metric, METRICS)](
            output, self._checked(labels, nodes, output)
        )

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the most frequent class of the labels; None if no label is known.

        Args:
            labels: Labels of training, int (n).
            outputs: Number of classes.
        """
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


ROUNDS = 20


def propagated(
    edges: Sequence[tuple[Tensor, Tensor]],
    values: Tensor,
    known: Tensor,
    rounds: int = ROUNDS,
    joined: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> tuple[Tensor, Tensor]:
    """Label propagation (Zhu and Ghahramani 2002); return rows, and a mask of the rows that were reached.

    `edges` are offsets and sources of each edge type by destination, (nodes + 1) and (edges). `values` are
    float (nodes, k), `known` bool (nodes). In each round, a node gets the mean of its in-neighbors, weighted
    by the share of known rows that has reached them; known rows do not change. Returns float64 (nodes, k) and
    bool (nodes).

    If edges are partitioned across ranks, `edges` are those into local nodes, and `joined` all-gathers
    float64 (local nodes, k + 1).
    """
    mass = known.double().unsqueeze(1)
    start = torch.cat([torch.where(known.unsqueeze(1), values.double(), 0.0), mass], dim=1)
    degrees = torch.stack([indptr.diff() for indptr, _ in edges]).sum(0)
    state = start
    for _ in range(rounds):
        total = start.new_zeros(degrees.numel(), start.shape[1])
        for indptr, indices in edges:
            total = total + segment_sum(state, indptr, indices)
        means = joined(total / degrees.clamp(min=1).unsqueeze(1))
        state = torch.where(known.unsqueeze(1), start, means)
    reached = state[:, -1] > 0
    return state[:, :-1] / torch.where(reached, state[:, -1], 1.0).unsqueeze(1), reached
