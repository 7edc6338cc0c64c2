"""Metrics of multi-label outputs, over the known entries of labels: 1 for present, 0 for absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from khop.training.metrics import Metric, average_precision, binary_roc_auc

MultiLabelMetric = Literal["f1-micro", "f1-macro", "roc-auc", "average-precision"]
UNKNOWN = -1  # entry of a label that is not known


def f1_micro(logits: Tensor, labels: Tensor) -> float:
    """Micro-averaged F1 over all known entries; a logit above 0 predicts the label; 0 without labels."""
    found, either = _counts(logits, labels)
    return float(2 * found.sum() / either.sum().clamp(min=1))


def f1_macro(logits: Tensor, labels: Tensor) -> float:
    """Macro-averaged F1 over the labels that occur or are predicted; 0 if there are none."""
    found, either = _counts(logits, labels)
    present = either > 0
    return float((2 * found[present].double() / either[present]).sum() / max(int(present.sum()), 1))


def roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Mean area under the ROC curve over the labels with both kinds of entries (as OGB computes it)."""
    areas = []
    for of_label, entries in zip(logits.double().T, labels.T, strict=True):
        known = entries != UNKNOWN
        positive = entries[known] == 1
        if positive.any() and not positive.all():
            areas.append(binary_roc_auc(of_label[known], positive))
    if not areas:
        raise ValueError("roc-auc: no label has known entries of both kinds, one is required")
    return sum(areas) / len(areas)


def mean_average_precision(logits: Tensor, labels: Tensor) -> float:
    """Mean average precision over the labels with a positive entry."""
    found = []
    for of_label, entries in zip(logits.double().T, labels.T, strict=True):
        known = entries != UNKNOWN
        if (entries == 1).any():
            found.append(average_precision(of_label[known], entries[known] == 1))
    if not found:
        raise ValueError("average-precision: no label has a positive entry, one is required")
    return sum(found) / len(found)


def _counts(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return int64 (labels): true positives, and predicted plus actual positives, of known entries."""
    known = labels != UNKNOWN
    predicted, actual = (logits > 0) & known, labels == 1
    return (predicted & actual).sum(0), predicted.sum(0) + actual.sum(0)


MULTI_LABEL_METRICS: Mapping[MultiLabelMetric, Metric] = {
    "f1-micro": f1_micro,
    "f1-macro": f1_macro,
    "roc-auc": roc_auc,
    "average-precision": mean_average_precision,
}


def entries_of(labels: Tensor) -> Tensor:
    """Return labels as int8: 1, 0, and -1 for entries that are not known.

    Stored labels are 1 and 0; unknown are negative numbers, NaN, and 255 of uint8.
    """
    if labels.dtype == torch.bool:
        return labels.to(torch.int8)
    unknown = labels == 255 if labels.dtype == torch.uint8 else ~(labels >= 0)
    return torch.where(unknown, UNKNOWN, (labels == 1).to(torch.int8))
