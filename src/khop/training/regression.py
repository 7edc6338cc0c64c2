"""Regression: predict one or several numbers per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from khop.arguments import check_word, instance_of
from khop.batch import Batch
from khop.schema import NodeType
from khop.training.baselines import Constant
from khop.training.constants import constant
from khop.training.metrics import check_outputs, known_metric
from khop.training.number_metrics import REGRESSION_METRICS, RegressionMetric

RegressionLoss = Literal["mse", "mae"]


@dataclass(frozen=True)
class LabelScale:
    """Mean and standard deviation of each number of a label; (0, 1) leaves labels as they are."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.deviation) or not min(self.deviation) > 0:
            raise ValueError(
                f"scale with mean {self.mean} and deviation {self.deviation}: give as many of both, and "
                "deviations above 0"
            )

    @classmethod
    def of(cls, labels: Tensor) -> LabelScale:
        """Compute the scale of labels (n) or (n, numbers) in float64; NaN is left out.

        Sums follow the order of the rows, so the result does not depend on threads or partitions. A number
        that is constant has deviation 1.
        """
        instance_of("labels", labels, Tensor, "give a tensor of labels, as graph.columns has them")
        rows = labels.detach().cpu().double().reshape(labels.shape[0], -1).numpy()
        known = [column[~np.isnan(column)] for column in rows.T]
        if not all(column.size for column in known):
            raise ValueError("labels: none is known, a scale needs one or more of each number")
        mean = tuple(float(column.mean()) for column in known)
        return cls(mean, tuple(float(column.std()) or 1.0 for column in known))


UNSCALED = LabelScale()


@dataclass(frozen=True)
class NodeRegression:
    """Task: predict the numbers of a label for nodes of one type, by squared ("mse") or absolute error.

    Outputs are in the unit of the label. The loss divides errors by the deviation of `scale`; let the model
    multiply by it too (`rescale`). Unknown numbers, NaN, are skipped: a seed's loss is the mean over its
    known numbers, and 0 if there are none.
    """

    node_type: NodeType
    label: str  # column of numbers, (nodes) or (nodes, numbers); NaN means unknown
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
        """Return (seeds): the error of each seed in units of the deviation."""
        labels = batch.seed_column(self.label, self.node_type)
        return number_losses(output, labels, self.loss, self.scale, self._column)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's, over the nodes with known labels.

        ValueError names a node with a NaN output, and if no label is known.
        """
        name = known_metric(metric or self.metric, REGRESSION_METRICS)
        check_outputs(output, nodes, self.node_type, name)
        rows = number_rows(labels, output, self._column).double()
        if bool(rows.isnan().all()):
            raise ValueError(f"{name}: no node of {self.node_type!r} has a known {self.label}, it needs one")
        return REGRESSION_METRICS[name](output, rows)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the mean of the labels; None if no label is known."""
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
            f"{column} has {rows.shape[1]} numbers, the model's output is of "
            f"shape {tuple(output.shape)}: give the model outputs={rows.shape[1]}"
        )
    return rows
