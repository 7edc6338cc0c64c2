"""Metrics of regression, over the known numbers of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from khop.training.metrics import Metric

RegressionMetric = Literal["rmse", "mae", "r2"]


def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Square root of the mean squared error, in the unit of the labels; lower is better."""
    return float((outputs.double() - labels.double()).square().nanmean().sqrt())


def mae(outputs: Tensor, labels: Tensor) -> float:
    """Mean absolute error, in the unit of the labels; lower is better."""
    return float((outputs.double() - labels.double()).abs().nanmean())


def r2(outputs: Tensor, labels: Tensor) -> float:
    """Coefficient of determination: 1 minus the error over that of the mean; the mean over the columns."""
    labels = labels.double()
    residual = (outputs.double() - labels).square().nansum(0)
    total = (labels - labels.nanmean(0)).square().nansum(0)
    if bool((total == 0).any()):
        raise ValueError("r2: all labels of a column are equal, it needs two different numbers")
    return float((1 - residual / total).mean())


REGRESSION_METRICS: Mapping[RegressionMetric, Metric] = {"rmse": rmse, "mae": mae, "r2": r2}
