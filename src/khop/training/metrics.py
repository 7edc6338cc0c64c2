"""How good an output is, as one number in which more is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from khop.training.ranking import binary_roc_auc

Metric = Callable[[Tensor, Tensor], float]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit is the label's; the lowest class wins a tie."""
    return float((logits.argmax(dim=1) == labels).double().mean())


def roc_auc(logits: Tensor, labels: Tensor) -> float:
    """The exact area under the ROC curve: of class 1 of two, else the mean of each class against the rest."""
    # Here and not at the top: torchmetrics takes longer to import than torch, and brings matplotlib.
    from torchmetrics.functional.classification import multiclass_auroc

    present = torch.unique(labels)
    if present.numel() < 2:
        raise ValueError(f"roc-auc: all {labels.numel()} labels are {present.tolist()}, it needs two classes")
    scores = logits.double()
    if logits.shape[1] == 2:
        return binary_roc_auc(scores[:, 1] - scores[:, 0], labels)
    return float(multiclass_auroc(torch.softmax(scores, dim=1), labels, num_classes=logits.shape[1]))


METRICS: Mapping[str, Metric] = {"accuracy": accuracy, "roc-auc": roc_auc}
