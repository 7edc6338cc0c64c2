"""Metrics of node outputs; each is one number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

import torch
from torch import Tensor

from khop.schema import NodeType
from khop.training.ranking import LOOK_FOR_NAN, average_precision, binary_roc_auc, check_scores

Metric = Callable[[Tensor, Tensor], float]
Name = TypeVar("Name", bound=str)
NodeMetric = Literal["accuracy", "f1-macro", "f1-micro", "roc-auc", "average-precision"]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of rows with their largest logit at the label; the lowest class wins a tie."""
    return float((logits.argmax(dim=1) == labels).double().mean())


def f1_micro(logits: Tensor, labels: Tensor) -> float:
    """F1 over all rows together; it equals accuracy, because each row has one class."""
    return accuracy(logits, labels)


def f1_macro(logits: Tensor, labels: Tensor) -> float:
    """Mean F1 over the classes that occur as a label or as a prediction (the largest logit)."""
    classes = logits.shape[1]
    predicted = logits.argmax(dim=1)
    found = torch.bincount(labels[predicted == labels], minlength=classes)
    either = torch.bincount(predicted, minlength=classes) + torch.bincount(labels, minlength=classes)
    present = either > 0
    return float((2 * found[present].double() / either[present]).mean())


def roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Exact area under the ROC curve: of class 1 for two classes, else the mean of one-against-rest areas."""
    # Imported here: torchmetrics takes longer to import than torch, and imports matplotlib.
    from torchmetrics.functional.classification import multiclass_auroc

    present = torch.unique(labels)
    if present.numel() < 2:
        raise ValueError(f"roc-auc: all {labels.numel()} labels are {present.tolist()}, it needs two classes")
    scores = logits.double()
    if logits.shape[1] == 2:
        return binary_roc_auc(scores[:, 1] - scores[:, 0], labels)
    shares = torch.softmax(scores, dim=1)
    check_scores(shares, "roc-auc")
    return float(multiclass_auroc(shares, labels, num_classes=logits.shape[1]))


def mean_average_precision(logits: Tensor, labels: Tensor) -> float:
    """Average precision: of class 1 for two classes, else the mean of each class against the rest."""
    scores = logits.double()
    if logits.shape[1] == 2:
        return average_precision(scores[:, 1] - scores[:, 0], labels)
    shares = torch.softmax(scores, dim=1)
    of_classes = [average_precision(shares[:, c], labels == c) for c in torch.unique(labels).tolist()]
    return sum(of_classes) / len(of_classes)


METRICS: Mapping[NodeMetric, Metric] = {
    "accuracy": accuracy,
    "f1-macro": f1_macro,
    "f1-micro": f1_micro,
    "roc-auc": roc_auc,
    "average-precision": mean_average_precision,
}

# By name, also of tasks from outside. Of all other metrics, higher is better.
LOWER_IS_BETTER = frozenset({"rmse", "mae"})


def is_better(metric: str, score: float, best: float | None) -> bool:
    """Return True if a score is better than the best one so far; None: there is none yet."""
    if best is None:
        return True
    return score < best if metric in LOWER_IS_BETTER else score > best


def check_outputs(outputs: Tensor, nodes: Tensor, node_type: NodeType, metric: str) -> None:
    """Raise ValueError, naming the first node, if an output is NaN."""
    wrong = outputs.isnan().any(dim=1)
    if wrong.any():
        raise ValueError(
            f"{metric}: the model's output for node {int(nodes[wrong][0])} of "
            f"{node_type!r} is NaN, and so for {int(wrong.sum()):,} of {nodes.numel():,} nodes: no "
            f"score can be given; {LOOK_FOR_NAN}"
        )


def known_metric(name: str | None, known: Iterable[Name]) -> Name:
    """Return the metric of this name. Raises ValueError if it is not in `known`."""
    names = list(known)
    for each in names:
        if each == name:
            return each
    raise ValueError(f"metric {name!r}: must be one of {', '.join(names)}")
